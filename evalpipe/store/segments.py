"""Immutable Parquet files: encode rows, name and write them, read them back only if every byte is right.

A name is <epoch>-<writer8>-<worker>-<seq>-<sha16>.parquet and never repeats. It ends in the file's own sha256, so that
a file the log does not know yet (its driver died) can be checked too: page checksums do not cover Parquet's footer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evalpipe.errors import StateError
from evalpipe.records import Key, Result, Status
from evalpipe.store.keys import Indices, KeySet
from evalpipe.store.objects import ObjectStore, create
from evalpipe.store.schema import ATTEMPT_SCHEMA, RESULT_SCHEMA, SPEC_KEY, conform, stamp

Kind = Literal["results", "attempts", "control"]

#: kind of rows -> folder its segments go to
FOLDERS: dict[Kind, str] = {"results": "segments", "attempts": "attempts", "control": "control"}

#: kind of rows -> its columns; the flight recorder brings its own
SCHEMAS: dict[Kind, pa.Schema] = {"results": RESULT_SCHEMA, "attempts": ATTEMPT_SCHEMA}

_SHA_IN_NAME = re.compile(r"-([0-9a-f]{16})\.parquet$")


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What the log says of one file. bytes: its size; sha256: hex, of the whole file.

    ok, failed: keys of the answered and of the failed rows, each once; empty for kinds other than results.
    """

    path: str
    rows: int
    bytes: int
    sha256: str
    kind: Kind = "results"
    ok: KeySet = field(default_factory=KeySet)
    failed: KeySet = field(default_factory=KeySet)

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in ("path", "rows", "bytes", "sha256", "kind")}
        return {**data, "ok": self.ok.to_json(), "failed": self.failed.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SegmentInfo:
        """Raises KeyError or ValueError for anything but what to_json makes."""
        keys = {name: KeySet.from_json(data[name]) for name in ("ok", "failed")}
        plain = {name: data[name] for name in ("path", "rows", "bytes", "sha256", "kind")}
        return cls(**{**plain, **keys})


def encode(rows: Sequence[Any], schema: pa.Schema, *, spec_sha256: str = "") -> bytes:
    """Turn dataclass rows into a Parquet file with page checksums.

    Timestamp columns are given as seconds since the Unix epoch. Raises StateError when a row does not fit the schema.
    """
    return encode_table(to_table(rows, schema), spec_sha256=spec_sha256)


def to_table(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Lay dataclass rows out as columns. Raises StateError when a row does not fit the schema."""
    try:
        table = pa.Table.from_arrays([_to_array(rows, column) for column in schema], schema=schema)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise StateError(f"rows do not fit the stored columns: {error}") from error
    for column in schema:
        if not column.nullable and table[column.name].null_count:
            raise StateError(f"rows do not fit the stored columns: {column.name} is required, a row has None")
    return table


def encode_table(table: pa.Table, *, spec_sha256: str) -> bytes:
    """Turn a table into a Parquet file with page checksums."""
    sink = pa.BufferOutputStream()
    stamped = table.replace_schema_metadata(stamp(table.schema, spec_sha256=spec_sha256).metadata)
    pq.write_table(stamped, sink, compression="zstd", write_page_checksum=True)
    return cast(bytes, sink.getvalue().to_pybytes())


def decode(data: bytes) -> pa.Table:
    """Read a Parquet file, page checksums verified. Raises StateError when it is torn, flipped or something else."""
    try:
        # no threads, and not read_table: Arrow's pool may still hold our buffer when the interpreter ends, which aborts
        # the process (seen with pyarrow 26.0.1 in one of three drivers that had just compacted)
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            return file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StateError(f"not a sound Parquet file: {error}") from error


def spec_of(table: pa.Table) -> str:
    """Return the sha256 of the spec that the table's file was written for, "" when it names none."""
    return cast(bytes, (table.schema.metadata or {}).get(SPEC_KEY, b"")).decode()


def write_segment(
    store: ObjectStore,
    rows: Sequence[Any],
    *,
    epoch: int,
    writer: str,
    worker: str,
    seq: int,
    spec_sha256: str,
    kind: Kind = "results",
    schema: pa.Schema | None = None,
) -> SegmentInfo:
    """Write rows as one durable file and return what the driver commits. Called by workers.

    writer: nonce of the driver that owns the epoch. seq: counts the worker's files. schema: needed for control rows
    only. Of results with the same key the first is kept, as in the log. Raises OSError while storage fails: keep the
    rows and call again with the same seq.
    """
    if kind == "results":
        rows = _first_of_each_key(rows)
    table = to_table(rows, schema or SCHEMAS[kind])
    return write_table(
        store, table, stem=f"{FOLDERS[kind]}/{epoch}-{writer[:8]}-{worker}-{seq}", kind=kind, spec_sha256=spec_sha256
    )


def write_table(store: ObjectStore, table: pa.Table, *, stem: str, kind: Kind, spec_sha256: str) -> SegmentInfo:
    """Write a table as one durable file <stem>-<sha16>.parquet; a lost reply is found out. Raises OSError."""
    data = encode_table(table, spec_sha256=spec_sha256)
    sha256 = hashlib.sha256(data).hexdigest()
    ok, failed = keys_of(table) if kind == "results" else (KeySet(), KeySet())
    path = f"{stem}-{sha256[:16]}.parquet"
    if not create(store, path, data):
        raise StateError(f"{path} exists with other content; names of segments must never repeat")
    return SegmentInfo(path, rows=table.num_rows, bytes=len(data), sha256=sha256, kind=kind, ok=ok, failed=failed)


def describe(path: str, data: bytes, *, kind: Kind, spec_sha256: str) -> SegmentInfo:
    """Work out what the log would say of a file found in storage, for the run of the given spec.

    Raises StateError when it is not sound, not the bytes its name was given for, or rows of something else.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    named = _SHA_IN_NAME.search(path)
    if named is None or not sha256.startswith(named[1]):
        raise StateError(f"{path} does not hold the bytes its name was given for")
    table = decode(data)
    if spec_of(table) != spec_sha256:
        raise StateError(f"{path} belongs to spec {spec_of(table)[:12] or '(none)'}, this run is {spec_sha256[:12]}")
    if kind in SCHEMAS:
        conform(table, SCHEMAS[kind])
    ok, failed = keys_of(table) if kind == "results" else (KeySet(), KeySet())
    return SegmentInfo(path, rows=table.num_rows, bytes=len(data), sha256=sha256, kind=kind, ok=ok, failed=failed)


def read_segment(store: ObjectStore, info: SegmentInfo) -> pa.Table:
    """Read a file that the log names. Raises StateError unless it is whole and the very one; NotFound if gone."""
    data = store.get(info.path)
    found = hashlib.sha256(data).hexdigest()
    if found != info.sha256:
        raise StateError(
            f"{info.path} is damaged: sha256 {found[:12]} of {len(data)} bytes,"
            f" the log says {info.sha256[:12]} of {info.bytes}"
        )
    return decode(data)


def keys_of(table: pa.Table) -> tuple[KeySet, KeySet]:
    """Return the keys of the answered and of the failed rows. Raises StateError when a key is there twice."""
    try:
        is_failed = _column(pc.equal(table["status"], Status.FAILED.value)).astype(bool)
        columns = [_column(table[name]) for name in ("item_index", "repeat", "generation")]
    except KeyError as error:
        raise StateError(f"not a file of results: {error}") from error
    every = KeySet.from_columns(*columns)
    failed = KeySet.from_columns(*(column[is_failed] for column in columns))
    return every.minus(failed), failed


def _first_of_each_key(rows: Sequence[Result]) -> list[Result]:
    first: dict[Key, Result] = {}
    for row in rows:
        first.setdefault(row.key, row)
    return list(first.values())


def _column(column: pa.ChunkedArray) -> Indices:
    return cast(Indices, column.to_numpy().astype(np.int64))


def _to_array(rows: Sequence[Any], column: pa.Field) -> pa.Array:
    values = [getattr(row, column.name) for row in rows]
    if pa.types.is_timestamp(column.type):
        values = [None if seconds is None else round(seconds * 1e6) for seconds in values]
    return pa.array(values, type=column.type)
