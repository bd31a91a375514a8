"""Ranges of numbers as short text: the steps between their ends as variable-length integers, in base64.

Ten million items in random order leave ten million ranges of one in the log: as JSON pairs they take 180 MB and more
than 1 GB of Python objects on the way in, packed 55 MB and none (2026-11). The spelling of a set is unique.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np
from numpy.typing import NDArray

from evalpipe.errors import StateError

Ranges = NDArray[np.int64]

_MOST_BYTES = 9  # of one step: 63 bits


def pack(ranges: Ranges) -> str:
    """Spell sorted, disjoint, inclusive ranges, int64[n, 2], none negative."""
    steps = np.diff(ranges.reshape(-1), prepend=0).astype(np.uint64)
    sizes = np.ones(len(steps), dtype=np.int64)
    for size in range(1, _MOST_BYTES):
        sizes += steps >> np.uint64(7 * size) > 0
    begins = np.cumsum(sizes) - sizes
    data = np.zeros(int(sizes.sum()), dtype=np.uint8)
    for place in range(int(sizes.max(initial=0))):  # seven bits a byte, lowest first; the top bit says "goes on"
        rows = sizes > place
        low = (steps[rows] >> np.uint64(7 * place)) & np.uint64(0x7F)
        goes_on = (sizes[rows] > place + 1).astype(np.uint8) << 7
        data[begins[rows] + place] = low.astype(np.uint8) | goes_on
    return base64.b64encode(data.tobytes()).decode()


def unpack(text: str) -> Ranges:
    """Read what `pack` spelled: int64[n, 2]. Raises StateError for anything else."""
    try:
        data = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    except (binascii.Error, ValueError) as error:
        raise StateError(f"not a packed set of keys: {error}") from error
    ends = np.flatnonzero(data < 0x80)
    if len(ends) % 2 or (len(data) and (not len(ends) or ends[-1] != len(data) - 1)):
        raise StateError("not a packed set of keys: it ends in the middle of a range")
    begins = np.concatenate([[0], ends + 1])[: len(ends)].astype(np.int64)
    place = np.arange(len(data), dtype=np.uint64) - np.repeat(begins, ends - begins + 1).astype(np.uint64)
    bits = (data & np.uint8(0x7F)).astype(np.uint64) << (np.uint64(7) * place)
    steps = np.add.reduceat(bits, begins) if len(begins) else bits
    return np.cumsum(steps.astype(np.int64)).reshape(-1, 2)
