"""The scratch file: every row once, in one Arrow IPC file with a fixed schema, memory-mapped for random access.

A row's fields are JSON text, so rows of any shape fit and no schema has to be guessed. Ids are checked by 8-byte
hashes in numpy, a pair with equal hashes by the ids themselves.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evalpipe.config import DatasetConfig
from evalpipe.data.columns import Roles, choose_roles, to_json, to_text
from evalpipe.data.readers import BLOCK_ROWS, Row
from evalpipe.errors import DataError
from evalpipe.records import Example

BLOCK_CHARS = 8 * 2**20  # a block ends early when its rows are long
SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("category", pa.string()),
        ("expected", pa.string()),  # null: no reference answer
        ("metadata", pa.string()),  # JSON object
        ("fields", pa.string()),  # JSON object: the row as it was read
        ("digest", pa.binary(32)),  # sha256 of id, category, answer and fields
        ("file", pa.int32()),
        ("line", pa.int64()),
    ]
)


@dataclass(slots=True)
class Index:
    """What is known of all rows without reading them again. id_hashes: uint64[n]; categories: int32[n], codes."""

    columns: dict[str, None] = field(default_factory=dict)  # an ordered set: names as they first turned up
    codes: dict[str, int] = field(default_factory=dict)
    id_hashes: array[int] = field(default_factory=lambda: array("Q"))
    categories: array[int] = field(default_factory=lambda: array("i"))

    def add(self, item_id: str, category: str) -> None:
        digest = hashlib.blake2b(item_id.encode(), digest_size=8).digest()
        self.id_hashes.append(int.from_bytes(digest, "little"))
        self.categories.append(self.codes.setdefault(category, len(self.codes)))


def write_spool(rows: Iterable[Row], path: Path, *, config: DatasetConfig, where: Callable[[int, int], str]) -> Index:
    """Write all rows to `path` and return what was learnt on the way.

    where: (file, line) to text for messages. Raises DataError for an empty dataset, a missing column or a bad id.
    """
    index = Index()
    blocks = _blocks(iter(rows))
    first = next(blocks, [])
    if not first:
        raise DataError(f"dataset {config.path} has no rows")
    roles = choose_roles(config, dict.fromkeys(name for row in first for name in row.values))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for block in itertools.chain([first], blocks):
            records = [_record(row, roles, index, where(row.file, row.line)) for row in block]
            writer.write_batch(pa.RecordBatch.from_pylist(records, schema=SCHEMA))
    return index


def _blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    block: list[Row] = []
    chars = 0
    for row in rows:
        block.append(row)
        chars += sum(len(value) for value in row.values.values() if isinstance(value, str | bytes))
        if len(block) >= BLOCK_ROWS or chars >= BLOCK_CHARS:
            yield block
            block, chars = [], 0
    if block:
        yield block


def _record(row: Row, roles: Roles, index: Index, where: str) -> dict[str, Any]:
    values = row.values
    try:
        item_id = _item_id(values, roles.id, number=len(index.id_hashes))
        category = _optional(values, roles.category) or ""
        expected = _optional(values, roles.expected)
        fields = to_json(values)
        digest = hashlib.sha256((to_json([item_id, category, expected]) + fields).encode()).digest()
        metadata = roles.passed_through(values)
    except UnicodeEncodeError:
        raise DataError(f"{where} holds half of a surrogate pair (\\ud800 to \\udfff), which is not text") from None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    index.columns.update(dict.fromkeys(values))
    index.add(item_id, category)
    texts = {"item_id": item_id, "category": category, "expected": expected, "metadata": metadata, "fields": fields}
    return {**texts, "digest": digest, "file": row.file, "line": row.line}


def _item_id(values: dict[str, Any], column: str | None, *, number: int) -> str:
    if column is None:
        return str(number)
    item_id = _optional(values, column)
    if not item_id:
        raise DataError(f"no id in column {column!r}; every row needs one (dataset.id_column names another column)")
    return item_id


def _optional(values: dict[str, Any], column: str | None) -> str | None:
    value = values.get(column) if column is not None else None
    return None if value is None else to_text(value)


class Spool:
    """Random access to a scratch file. Not thread-safe to close while it is read."""

    def __init__(self, path: Path, *, columns: Iterable[str]) -> None:
        self.columns = tuple(columns)
        self._blank: dict[str, Any] = dict.fromkeys(self.columns)
        self._map = pa.memory_map(str(path))
        reader = pa.ipc.open_file(self._map)
        self._blocks = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._starts: list[int] = [0, *itertools.accumulate(block.num_rows for block in self._blocks)]

    def __len__(self) -> int:
        return self._starts[-1]

    def example(self, item_index: int) -> Example:
        """Read one row; a column that it lacks is None. Raises IndexError outside 0 <= item_index < n."""
        item_id, category, expected, metadata, fields = self._cells(item_index, 0, 5)
        return Example(item_index, item_id, category, expected, self._blank | json.loads(fields), metadata)

    def origin(self, item_index: int) -> tuple[int, int]:
        """Return (file, line) of one row, as Row has them."""
        file, line = self._cells(item_index, 6, 8)
        return file, line

    def digests(self) -> NDArray[np.uint8]:
        """Return the digest of every row: uint8[n, 32]."""
        buffers = [np.frombuffer(block.column(5).buffers()[1], dtype=np.uint8) for block in self._blocks]
        sizes = [block.num_rows * 32 for block in self._blocks]  # buffers are padded
        return np.concatenate([b[:size] for b, size in zip(buffers, sizes, strict=True)]).reshape(-1, 32)

    def close(self) -> None:
        self._blocks.clear()
        self._map.close()

    def _cells(self, item_index: int, first: int, last: int) -> list[Any]:
        if not 0 <= item_index < len(self):
            raise IndexError(f"item_index must be in [0, {len(self)}), got {item_index}")
        number = bisect_right(self._starts, item_index) - 1
        row = item_index - self._starts[number]
        return [self._blocks[number].column(i)[row].as_py() for i in range(first, last)]
