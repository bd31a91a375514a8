"""Merge small segments into the parts that users read, in one commit a part: nothing lost, nothing twice.

Each part is sorted by item_index; there is no order across parts, so segments are merged as they come and memory holds
one part. Called by the owner of the run, off the critical path.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from evalpipe.errors import Fenced, StateError
from evalpipe.store.log import Log
from evalpipe.store.objects import ObjectStore
from evalpipe.store.rowhash import hash_rows
from evalpipe.store.rows import read_winners, result_files, sort_rows
from evalpipe.store.segments import SegmentInfo, read_segment, write_table
from evalpipe.store.state import LiveFile

FOLDER = "parts"
PART_ROWS = 1_000_000
PART_BYTES = 128 * 2**20  # in memory, not on disk: it bounds what a merge holds, some three times this


@dataclass(slots=True)
class _Batch:
    """Segments that become one part."""

    paths: list[str] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, path: str, table: pa.Table) -> None:
        self.paths.append(path)
        self.tables.append(table)
        self.rows += table.num_rows
        self.bytes += table.nbytes


def compact(
    store: ObjectStore, log: Log, *, max_rows: int = PART_ROWS, max_bytes: int = PART_BYTES
) -> list[SegmentInfo]:
    """Merge all committed segments of results into parts and return these; parts made before stay as they are.

    Raises StateError when a segment is damaged or a merge does not conserve its rows (nothing is committed then),
    Fenced, OSError. Merged segments are deleted after the commit, best effort; the log no longer names them, and who
    reads beside us finds their rows in the part (store/rows.py).
    """
    log.check_owner()
    _sweep(store, log)
    segments = [file for file in result_files(log.state) if not file.info.path.startswith(f"{FOLDER}/")]
    parts: list[SegmentInfo] = []
    for batch in _batches(store, segments, max_rows=max_rows, max_bytes=max_bytes):
        written = [_merge(store, batch, spec_sha256=log.state.spec_sha256)] if batch.rows else []
        _commit(store, log, written, remove=batch.paths)
        parts += written
        for path in batch.paths:
            _discard(store, path)
    if segments:
        log.save_checkpoint()  # a merge is the dearest entry to replay, and most runs are read from here on
    return parts


def _batches(store: ObjectStore, segments: list[LiveFile], *, max_rows: int, max_bytes: int) -> Iterator[_Batch]:
    batch = _Batch()
    for file in segments:
        table = read_winners(store, file)
        if batch.paths and (batch.rows + table.num_rows > max_rows or batch.bytes + table.nbytes > max_bytes):
            yield batch
            batch = _Batch()
        batch.add(file.info.path, table)
    if batch.paths:
        yield batch


def _merge(store: ObjectStore, batch: _Batch, *, spec_sha256: str) -> SegmentInfo:
    """Write one part and read it back. Raises StateError unless it holds exactly the rows of the batch."""
    before = sum(map(hash_rows, batch.tables)) % 2**64
    merged = sort_rows(pa.concat_tables(batch.tables))
    part = write_table(store, merged, stem=f"{FOLDER}/{uuid.uuid4().hex}", kind="results", spec_sha256=spec_sha256)
    stored = read_segment(store, part)
    if stored.num_rows != batch.rows or hash_rows(stored) != before:
        raise StateError(
            f"merging {len(batch.paths)} segments of {batch.rows} rows gave {stored.num_rows} rows or other content"
            f" in {part.path}; nothing was committed"
        )
    return part


def _commit(store: ObjectStore, log: Log, written: list[SegmentInfo], *, remove: list[str]) -> None:
    """Commit a merge; fenced, take the part away again: nobody will name it, and users read that folder."""
    try:
        log.commit(written, remove=remove)
    except Fenced:
        for part in written:
            _discard(store, part.path)
        raise


def _sweep(store: ObjectStore, log: Log) -> None:
    """Delete what the dead left: torn files, and parts without a commit, which readers of the folder would count."""
    with contextlib.suppress(OSError):  # what is left is in nobody's way
        store.sweep()
    for path in store.list(f"{FOLDER}/"):
        if path not in log.state.files:
            _discard(store, path)


def _discard(store: ObjectStore, path: str) -> None:
    with contextlib.suppress(OSError):
        store.delete(path)
