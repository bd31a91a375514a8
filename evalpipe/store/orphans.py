"""What the dead left behind: files that nobody committed are paid answers, taken in if sound; torn ones are swept."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from evalpipe.errors import StateError
from evalpipe.store.log import Log
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.segments import FOLDERS, Kind, SegmentInfo, describe

QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of the orphans. broken: path and reason of each file that was put in quarantine instead."""

    adopted: tuple[SegmentInfo, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> int:
        return sum(info.rows for info in self.adopted if info.kind == "results")


def find_orphans(store: ObjectStore, log: Log) -> list[tuple[str, Kind]]:
    """Return path and kind of the files of workers that the log never named."""
    return [
        (path, kind)
        for kind, folder in FOLDERS.items()
        for path in store.list(f"{folder}/")
        if path.endswith(".parquet") and not log.state.knows(path)
    ]


def adopt_orphans(store: ObjectStore, log: Log) -> Adoption:
    """Commit the sound orphans and set the broken ones aside; called by the owner, after its claim.

    A row whose key has a result already adds nothing (the first commit wins). A broken file is copied to quarantine/
    and then deleted where it was, so that the next resume does not meet it again. Raises Fenced, OSError.
    """
    log.check_owner()
    with contextlib.suppress(OSError):  # what is left is in nobody's way
        store.sweep()
    sound: list[SegmentInfo] = []
    broken: list[tuple[str, str]] = []
    for path, kind in find_orphans(store, log):
        try:
            sound.append(describe(path, store.get(path), kind=kind, spec_sha256=log.state.spec_sha256))
        except NotFound:
            continue  # a stale listing
        except StateError as error:
            broken.append((path, str(error)))
    if sound:
        log.commit(sound)
    for path, _ in broken:
        _set_aside(store, path)
    return Adoption(tuple(sound), tuple(broken))


def _set_aside(store: ObjectStore, path: str) -> None:
    with contextlib.suppress(NotFound):
        store.put(f"{QUARANTINE}/{path}", store.get(path))
        store.delete(path)
