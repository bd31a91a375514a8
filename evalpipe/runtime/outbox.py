"""A worker's finished rows on their way to the store: buffered, written as immutable files, reported until committed.

At a crash the rows in memory are lost, so they stay here at most `flush_s` seconds. What was written is safe: the next
driver adopts files that no log entry names.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from evalpipe.records import AttemptRecord, Result
from evalpipe.runtime.messages import WorkerSpec, Written
from evalpipe.store.objects import ObjectStore
from evalpipe.store.segments import Kind, SegmentInfo, write_segment

MAX_ROWS = 500
MAX_BYTES = 8 * 2**20
ATTEMPTS_EVERY_S = 10.0  # attempts are for reading, not for resuming: fewer and larger files
FULL_ROWS = 5_000  # with so many rows unwritten (storage fails) the worker stops sending
GIVE_UP_AFTER = 30  # failed writes in a row: about a minute of broken storage


class Outbox:
    """Rows in, files out. Rows stay until their file is durable; one flush runs at a time."""

    def __init__(self, store: ObjectStore, spec: WorkerSpec) -> None:
        self._store, self._spec = store, spec
        self._results: list[Result] = []
        self._attempts: list[AttemptRecord] = []
        self._bytes = 0
        self._writing = 0
        self._lock = asyncio.Lock()
        self._attempts_at = 0.0
        self._seq = 0
        self._reports: deque[Written] = deque()
        self._reported = 0
        self._failures = 0
        self.last_error = ""
        self.is_due = asyncio.Event()

    @property
    def unwritten(self) -> int:
        """Results that no durable file holds yet."""
        return len(self._results) + self._writing

    @property
    def is_full(self) -> bool:
        return self.unwritten >= FULL_ROWS

    @property
    def is_broken(self) -> bool:
        """Storage has failed for so long that the run should stop."""
        return self._failures >= GIVE_UP_AFTER

    def add(self, result: Result) -> None:
        self._results.append(result)
        self._bytes += len(result.response or "") + len(result.prompt or "") + len(result.reasoning or "") + 300
        is_large = len(self._results) >= MAX_ROWS or self._bytes >= MAX_BYTES
        if is_large and self._failures == 0:  # storage that fails is asked by the timer, not by every row
            self.is_due.set()

    def add_attempt(self, attempt: AttemptRecord) -> None:
        self._attempts.append(attempt)

    def pending(self, *, acked: int) -> Sequence[Written]:
        """Forget what the driver has committed and return the reports it has not."""
        while self._reports and self._reports[0].number <= acked:
            self._reports.popleft()
        return tuple(self._reports)

    async def flush(self, *, now: float, everything: bool = False) -> None:
        """Write what is buffered; a write that fails is tried again at the next flush, with the same rows."""
        async with self._lock:
            self.is_due.clear()
            await self._write_results()
            if everything or now - self._attempts_at >= ATTEMPTS_EVERY_S:
                self._attempts_at = now
                await self._write_attempts()

    async def _write_results(self) -> None:
        if not self._results:
            return
        rows, self._results, size, self._bytes = self._results, [], self._bytes, 0
        self._writing = len(rows)
        info = None
        try:
            info = await self._write(rows, "results")
        finally:  # whatever happened: rows that are in no file are kept
            self._writing = 0
            if info is None:
                self._results, self._bytes = rows + self._results, size + self._bytes

    async def _write_attempts(self) -> None:
        if not self._attempts:
            return
        rows, self._attempts = self._attempts, []
        if await self._write(rows, "attempts") is None:
            self._attempts = rows + self._attempts

    async def _write(self, rows: Sequence[Result | AttemptRecord], kind: Kind) -> SegmentInfo | None:
        """Encode and write in a thread: both would hold up the streams. None when storage failed."""
        self._seq += 1
        spec = self._spec
        try:
            info = await asyncio.to_thread(
                write_segment,
                self._store,
                rows,
                epoch=spec.writer_epoch,
                writer=spec.writer,
                worker=f"{spec.name}.{spec.incarnation}",
                seq=self._seq,
                spec_sha256=spec.spec_sha256,
                kind=kind,
            )
        except OSError as error:
            self._failures += 1
            self.last_error = str(error)
            return None
        self._failures = 0
        self._reported += 1
        self._reports.append(Written(self._reported, info))
        return info
