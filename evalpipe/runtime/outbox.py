"""A worker's finished rows on their way to the store: buffered, written as immutable files, reported until committed.

At a crash the rows in memory are lost, so they stay here at most `flush_s` seconds. What was written is safe: the next
driver adopts files that no log entry names. A full disk loses nothing: rows wait here until there is space again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from evalpipe.records import AttemptRecord, Result
from evalpipe.runtime.messages import WorkerSpec, Written
from evalpipe.store.objects import ObjectStore
from evalpipe.store.segments import Kind, SegmentInfo, write_segment

MAX_ROWS = 500
MAX_BYTES = 8 * 2**20
ATTEMPTS_EVERY_S = 10.0  # attempts are for reading, not for resuming: fewer and larger files
FULL_ROWS = 5_000  # so many rows unwritten: storage is too slow, and the worker must wait for it
RETRY_S, RETRY_AT_MOST_S = 0.5, 8.0  # after failed writes; the interval of the flushes counts too
GIVE_UP_S = 60.0  # storage that fails for so long ends the run; it goes on with the same command


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows of one file: they and its number stay the same over all tries: one without an answer may have worked."""

    kind: Kind
    seq: int
    rows: Sequence[Result | AttemptRecord]


class Outbox:
    """Rows in, files out. Rows stay until their file is durable; one flush runs at a time.

    As long as storage refuses to write, the worker should send nothing: each further answer could be lost in a crash.
    """

    def __init__(self, store: ObjectStore, spec: WorkerSpec) -> None:
        self._store, self._spec = store, spec
        self._results: list[Result] = []
        self._attempts: list[AttemptRecord] = []
        self._bytes = 0
        self._batches: deque[_Batch] = deque()
        self._lock = asyncio.Lock()
        self._attempts_at = 0.0
        self._seq = 0
        self._reports: deque[Written] = deque()
        self._reported = 0
        self._failures = 0
        self._failed_at = self._retry_at = float("-inf")
        self.is_broken = False
        self.last_error = ""
        self.is_due = asyncio.Event()

    @property
    def unwritten(self) -> int:
        """Results that no durable file holds yet."""
        return len(self._results) + sum(len(batch.rows) for batch in self._batches if batch.kind == "results")

    @property
    def is_full(self) -> bool:
        """Nothing more should come in: storage refused the last write, or does not keep up."""
        return self._failures > 0 or self.unwritten >= FULL_ROWS

    @property
    def trouble(self) -> str:
        """Why storage refuses to write now, "" while it does not."""
        return self.last_error if self._failures else ""

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
        """Write what is buffered. A write that fails is tried again at a later flush, less and less often."""
        async with self._lock:
            self.is_due.clear()
            if now < self._retry_at:
                return
            if await self._write_batches(now):
                self._form_batches(now, everything=everything)
                await self._write_batches(now)

    def _form_batches(self, now: float, *, everything: bool) -> None:
        if self._results:
            self._batch("results", self._results)
            self._results, self._bytes = [], 0
        if self._attempts and (everything or now - self._attempts_at >= ATTEMPTS_EVERY_S):
            self._attempts_at = now
            self._batch("attempts", self._attempts)
            self._attempts = []

    def _batch(self, kind: Kind, rows: Sequence[Result | AttemptRecord]) -> None:
        self._seq += 1
        self._batches.append(_Batch(kind, self._seq, rows))

    async def _write_batches(self, now: float) -> bool:
        """Write batches in their order until one fails; a batch leaves the queue when its file is durable."""
        while self._batches:
            try:
                info = await self._write(self._batches[0])
            except OSError as error:
                self._note_failure(str(error), now)
                return False
            self._batches.popleft()
            self._failures, self.is_broken = 0, False
            self._reported += 1
            self._reports.append(Written(self._reported, info))
        return True

    async def _write(self, batch: _Batch) -> SegmentInfo:
        """Encode and write in a thread: both would hold up the streams. Raises OSError when storage fails."""
        spec = self._spec
        return await asyncio.to_thread(
            write_segment,
            self._store,
            batch.rows,
            epoch=spec.writer_epoch,
            writer=spec.writer,
            worker=f"{spec.name}.{spec.incarnation}",
            seq=batch.seq,
            spec_sha256=spec.spec_sha256,
            kind=batch.kind,
        )

    def _note_failure(self, error: str, now: float) -> None:
        self.last_error = error
        if self._failures == 0:
            self._failed_at = now
        self.is_broken = now - self._failed_at >= GIVE_UP_S
        self._retry_at = now + min(RETRY_S * 2**self._failures, RETRY_AT_MOST_S)
        self._failures += 1
