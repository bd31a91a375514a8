"""Files of a run that people open, with a checksum inside: summary.json and config.yaml.

They are written anew by each driver and outside the log, so nothing else would notice a flipped bit in a number there.
The checksum is over what the file says, not how it is laid out, where that can be told apart (JSON).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, cast

import orjson

from evalpipe.errors import StateError

_CRC_LINE = re.compile(rb"# crc32: ([0-9a-f]{8})\n$")


def to_json(body: Mapping[str, Any]) -> bytes:
    """Write indented JSON with the crc32 of its content as the last key. body: no key "crc"."""
    return orjson.dumps({**body, "crc": _crc(body)}, option=orjson.OPT_INDENT_2)


def from_json(data: bytes, *, key: str) -> dict[str, Any]:
    """Read what `to_json` wrote. Raises StateError, naming key, when a value is not the one that was written."""
    try:
        body = cast(dict[str, Any], orjson.loads(data))
        crc = body.pop("crc")
    except (orjson.JSONDecodeError, AttributeError, TypeError, KeyError):
        raise StateError(f"{key} is damaged, or of another version of evalpipe: no JSON with a checksum") from None
    if crc != _crc(body):
        raise StateError(f"{key} is damaged: its crc does not fit its content; the next resume writes it anew")
    return body


def to_yaml(text: str) -> bytes:
    """Add the crc32 of the text as a comment in its last line."""
    data = text.encode()
    data = data if data.endswith(b"\n") else data + b"\n"
    return data + b"# crc32: %08x\n" % zlib.crc32(data)


def check_yaml(data: bytes, *, key: str) -> None:
    """Raise StateError, naming key, unless the text is the one that `to_yaml` was given."""
    line = _CRC_LINE.search(data)
    if line is None or int(line[1], 16) != zlib.crc32(data[: line.start()]):
        raise StateError(f"{key} was changed since evalpipe wrote it: its crc32 does not fit")


def _crc(body: Mapping[str, Any]) -> int:
    return zlib.crc32(orjson.dumps(body, option=orjson.OPT_SORT_KEYS))
