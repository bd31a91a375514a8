"""One numbered commit of the log, and how it is spelled: canonical JSON under a crc."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import orjson

from evalpipe.errors import StateError
from evalpipe.store.segments import SegmentInfo

FOLDER = "_log/"


class Counts(NamedTuple):
    """Totals of the log: keys answered, keys failed, rows that came second for their key."""

    ok: int = 0
    failed: int = 0
    duplicate: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What one commit says. version counts from 1.

    claim: sha256 of the spec where the entry opens a new epoch, else None. before: totals that the writer saw before
    it, so that a reader which counted otherwise notices. wall, mono: seconds, for people; nothing is decided by them.
    """

    version: int
    epoch: int
    writer: str
    claim: str | None = None
    add: tuple[SegmentInfo, ...] = ()
    remove: tuple[str, ...] = ()
    before: Counts = field(default_factory=Counts)
    wall: float = 0.0
    mono: float = 0.0

    def to_bytes(self) -> bytes:
        body = {
            "v": self.version,
            "epoch": self.epoch,
            "writer": self.writer,
            "claim": self.claim,
            "add": [info.to_json() for info in self.add],
            "remove": list(self.remove),
            "before": self.before._asdict(),
            "wall": self.wall,
            "mono": self.mono,
        }
        return seal(body)

    @classmethod
    def from_bytes(cls, data: bytes, *, key: str) -> Entry:
        """key: where the bytes were found, for the message. Raises StateError when they are not what was written."""
        body = unseal(data, key=key)
        try:
            return cls(
                version=body["v"],
                epoch=body["epoch"],
                writer=body["writer"],
                claim=body["claim"],
                add=tuple(SegmentInfo.from_json(info) for info in body["add"]),
                remove=tuple(body["remove"]),
                before=Counts(**body["before"]),
                wall=body["wall"],
                mono=body["mono"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{key} was written by another version of evalpipe: {error!r}") from error


def entry_key(version: int) -> str:
    return f"{FOLDER}{version:010d}.json"


def version_of(key: str) -> int:
    """Return the version in the name of an entry or a checkpoint, 0 for any other file."""
    stem = key.rpartition("/")[2].partition(".")[0]
    return int(stem) if len(stem) == 10 and stem.isdecimal() else 0


def seal(body: Mapping[str, Any]) -> bytes:
    """Write canonical JSON (sorted keys, no spaces) with the crc32 of itself as one more key."""
    return _canonical({**body, "crc": zlib.crc32(_canonical(body))})


def unseal(data: bytes, *, key: str) -> dict[str, Any]:
    """Read what `seal` wrote. Raises StateError unless every byte is as it was written."""
    try:
        body = cast(dict[str, Any], orjson.loads(data))
        crc = body.pop("crc")
    except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        raise StateError(f"{key} is damaged: {len(data)} bytes that are no sealed JSON") from error
    if crc != zlib.crc32(_canonical(body)) or seal(body) != data:
        raise StateError(f"{key} is damaged: its crc does not fit its content")
    return body


def _canonical(body: Mapping[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
