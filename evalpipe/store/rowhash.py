"""One number for a multiset of rows, whatever their order: the net under compaction.

64 bits, not cryptographic, and valid inside one process only (Python's string hash is seeded anew in each).
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)  # any odd constant far from small numbers
_PRIME = np.uint64(0x100000001B3)  # of FNV-1a: makes the columns' order count


def hash_rows(table: pa.Table) -> int:
    """Return the sum, modulo 2**64, of a hash of each row over all columns in order."""
    rows = np.zeros(table.num_rows, dtype=np.uint64)
    for column in table.columns:
        rows = _mix(rows * _PRIME + _hash_column(column))
    return int(rows.sum(dtype=np.uint64))


def _hash_column(column: pa.ChunkedArray) -> Hashes:
    if pa.types.is_string(column.type):
        return _hash_texts(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if not pa.types.is_floating(column.type):
        column = column.cast(pa.int64())
    is_null = pc.is_null(column).to_numpy()
    values = pc.fill_null(column, pa.scalar(0, column.type)).to_numpy()
    bits = np.ascontiguousarray(values).view(np.uint64).copy()  # float64 by its bits: NaN equals itself
    bits[is_null] = _NULL
    return bits


def _hash_texts(column: pa.ChunkedArray) -> Hashes:
    encoded = column.combine_chunks().dictionary_encode()
    texts = [hash(text) & 0xFFFFFFFFFFFFFFFF for text in encoded.dictionary.to_pylist()]
    table = np.array([*texts, int(_NULL)], dtype=np.uint64)
    return cast(Hashes, table[pc.fill_null(encoded.indices, len(texts)).to_numpy()])


def _mix(values: Hashes) -> Hashes:
    """Spread every bit over the word: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
