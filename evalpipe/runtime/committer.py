"""From files that workers wrote to entries of the log: collected, committed about once a second, acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from evalpipe.records import Key
from evalpipe.runtime.clock import REAL, Clock
from evalpipe.runtime.messages import Written
from evalpipe.store.log import Log
from evalpipe.store.objects import ObjectStore
from evalpipe.store.orphans import Adoption, adopt_orphans
from evalpipe.store.segments import SegmentInfo
from evalpipe.store.state import LogState

log = logging.getLogger(__name__)

COMMIT_S = 1.0  # with the worker's flush every 2 s, an answer is in the log within about 3 s
ADOPT_TRIES = 3  # a storage error that passes must not make answers be paid twice
GIVE_UP_S = 60.0  # storage that fails for so long ends the run; workers give up after the same time


class Committer:
    """The driver's only writer to the log. Raises Fenced as soon as another driver owns the run."""

    def __init__(self, store: ObjectStore, run_log: Log, *, clock: Clock = REAL) -> None:
        self._store, self._log, self._clock = store, run_log, clock
        self._waiting: dict[str, dict[int, SegmentInfo]] = {}  # worker process -> report number -> file
        self._acked: dict[str, int] = {}
        self._committed_at = 0.0
        self._failed_at: float | None = None  # when the first of the failures in a row was; None: the last one worked
        self.trouble = ""  # why storage refuses to write now, "" while it does not

    @property
    def state(self) -> LogState:
        return self._log.state

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def writer(self) -> str:
        return self._log.writer

    def add(self, process: str, written: Sequence[Written]) -> None:
        """Take a worker's reports; those it repeats are known by their number."""
        acked = self._acked.get(process, 0)
        waiting = self._waiting.setdefault(process, {})
        waiting.update((report.number, report.info) for report in written if report.number > acked)

    def acked(self, process: str) -> int:
        """Return the last report of this worker process that is in the log."""
        return self._acked.get(process, 0)

    def commit(self, *, now: float, force: bool = False) -> list[Key]:
        """Write one entry for all that waits, if a commit is due; return the keys that are settled by it.

        Storage that fails is tried again a second later. Raises Fenced; OSError when it has failed for a minute.
        """
        files = [info for reports in self._waiting.values() for info in reports.values()]
        if not files or not (force or now - self._committed_at >= COMMIT_S):
            return []
        self._committed_at = now
        try:
            self._log.commit(files)
        except OSError as error:
            self._note_failure(error, now)
            return []
        self._failed_at, self.trouble = None, ""
        return self._settle()

    def finish(self) -> list[Key]:
        """Commit all that waits, patiently. Raises OSError when storage has failed for a minute."""
        keys = self.commit(now=self._clock.now(), force=True)
        while any(self._waiting.values()):
            self._clock.sleep(COMMIT_S)
            keys += self.commit(now=self._clock.now(), force=True)
        return keys

    def adopt(self) -> list[Key]:
        """Commit files that dead processes left unreported; return the keys they hold. Broken ones are set aside."""
        adoption = self._adopt_patiently()
        for path, reason in adoption.broken:
            log.warning("quarantine path=%s reason=%s", path, reason)
        if adoption.adopted:
            log.warning("adopted files=%d rows=%d", len(adoption.adopted), adoption.rows)
        return [key for info in adoption.adopted for key in (*info.ok, *info.failed)]

    def _note_failure(self, error: OSError, now: float) -> None:
        """Raise the error when it has been so for long enough."""
        log.warning("commit failed error=%s", error)
        self.trouble = str(error)
        self._failed_at = now if self._failed_at is None else self._failed_at
        if now - self._failed_at >= GIVE_UP_S:
            raise error

    def _adopt_patiently(self) -> Adoption:
        for left in reversed(range(ADOPT_TRIES)):
            try:
                return adopt_orphans(self._store, self._log)
            except OSError as error:
                log.warning("adoption failed, tries left: %d error=%s", left, error)
                if left:
                    self._clock.sleep(COMMIT_S)
        return Adoption()  # left to the next resume

    def _settle(self) -> list[Key]:
        keys: list[Key] = []
        for process, reports in self._waiting.items():
            for number, info in reports.items():
                keys += [*info.ok, *info.failed]
                self._acked[process] = max(self._acked.get(process, 0), number)
        self._waiting.clear()
        return keys
