"""From files that workers wrote to entries of the log: collected, committed about once a second, acknowledged."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from evalpipe.records import Key
from evalpipe.runtime.messages import Written
from evalpipe.store.log import Log
from evalpipe.store.objects import ObjectStore
from evalpipe.store.orphans import adopt_orphans
from evalpipe.store.segments import SegmentInfo
from evalpipe.store.state import LogState

log = logging.getLogger(__name__)

COMMIT_S = 1.0  # with the worker's flush every 2 s, an answer is in the log within about 3 s
PATIENCE = 30  # commits that fail in a row: half a minute of broken storage


class Committer:
    """The driver's only writer to the log. Raises Fenced as soon as another driver owns the run."""

    def __init__(self, store: ObjectStore, run_log: Log) -> None:
        self._store, self._log = store, run_log
        self._waiting: dict[str, dict[int, SegmentInfo]] = {}  # worker process -> report number -> file
        self._acked: dict[str, int] = {}
        self._committed_at = 0.0
        self._failures = 0

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

        Storage that fails is tried again a second later. Raises Fenced; OSError when it failed for half a minute.
        """
        files = [info for reports in self._waiting.values() for info in reports.values()]
        if not files or not (force or now - self._committed_at >= COMMIT_S):
            return []
        self._committed_at = now
        try:
            self._log.commit(files)
        except OSError as error:
            self._failures += 1
            log.warning("commit failed=%d error=%s", self._failures, error)
            if self._failures >= PATIENCE:
                raise
            return []
        self._failures = 0
        return self._settle()

    def finish(self) -> list[Key]:
        """Commit all that waits, patiently. Raises OSError when storage failed for half a minute."""
        keys = self.commit(now=time.monotonic(), force=True)
        while any(self._waiting.values()):
            time.sleep(COMMIT_S)
            keys += self.commit(now=time.monotonic(), force=True)
        return keys

    def adopt(self) -> list[Key]:
        """Commit files that dead processes left unreported; return the keys they hold. Broken ones are set aside."""
        try:
            adoption = adopt_orphans(self._store, self._log)
        except OSError as error:
            log.warning("adoption failed, left to the next resume: %s", error)
            return []
        for path, reason in adoption.broken:
            log.warning("quarantine path=%s reason=%s", path, reason)
        if adoption.adopted:
            log.warning("adopted files=%d rows=%d", len(adoption.adopted), adoption.rows)
        return [key for info in adoption.adopted for key in (*info.ok, *info.failed)]

    def _settle(self) -> list[Key]:
        keys: list[Key] = []
        for process, reports in self._waiting.items():
            for number, info in reports.items():
                keys += [*info.ok, *info.failed]
                self._acked[process] = max(self._acked.get(process, 0), number)
        self._waiting.clear()
        return keys
