"""Is the driver before us still alive? A counter that it keeps raising, watched on the newcomer's own clock.

This guards against paying twice, not against wrong results: the epoch in the log does that. No two clocks are compared.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

import orjson

from evalpipe.store.objects import NotFound, ObjectStore

BEAT_S = 5.0  # how often the owner beats
WATCH_S = 20.0  # four beats: one slow write is no death


class Liveness(StrEnum):
    """What is known of the other driver. UNKNOWN: go on watching."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the owner of an epoch says of itself. counter rises with each beat; is_over: it ended on purpose.

    job: Ray's submission id, "" outside a job.
    """

    epoch: int
    counter: int
    host: str
    pid: int
    job: str = ""
    is_over: bool = False

    def describe(self) -> str:
        """Return where the driver runs, for the message to the user who wants to start a second one."""
        return f"pid {self.pid} on {self.host}" + (f", job {self.job}" if self.job else "")


class Heartbeat:
    """The owner's side: raise the counter each BEAT_S. Derived data; a failed beat may be skipped."""

    def __init__(self, store: ObjectStore, epoch: int, *, job: str = "") -> None:
        self._store = store
        self._epoch = epoch
        self._job = job
        self._counter = 0

    def beat(self) -> None:
        """Raises OSError."""
        self._write(is_over=False)

    def end(self) -> None:
        """Tell that this driver stops by itself, so that a successor need not wait. Raises OSError."""
        self._write(is_over=True)

    def _write(self, *, is_over: bool) -> None:
        self._counter += 1
        record = LeaseRecord(self._epoch, self._counter, socket.gethostname(), os.getpid(), self._job, is_over)
        self._store.put(lease_key(self._epoch), orjson.dumps(asdict(record)))


def lease_key(epoch: int) -> str:
    return f"_lease/{epoch}.json"


def read_lease(store: ObjectStore, epoch: int) -> LeaseRecord | None:
    """Return what the owner of the epoch last said; None when it said nothing that can be read."""
    try:
        return LeaseRecord(**orjson.loads(store.get(lease_key(epoch))))
    except (NotFound, orjson.JSONDecodeError, TypeError):
        return None


def is_process(pid: int) -> bool:
    """Say whether a process of this host has the number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # someone else's
    return True


def may_live(record: LeaseRecord) -> bool:
    """Say from one look whether the driver may be at work: not if it said goodbye, nor if its pid is gone."""
    is_here = record.host == socket.gethostname()
    return not record.is_over and not (is_here and not is_process(record.pid))


class Watcher:
    """The newcomer's side; pure. Feed it what `read_lease` returns each second or so until it is sure.

    host: ours, to look the pid up where it is the same. Without a record it waits the watch out.
    """

    def __init__(self, *, host: str, watch_s: float = WATCH_S, is_process: Callable[[int], bool] = is_process) -> None:
        self._host = host
        self._watch_s = watch_s
        self._is_process = is_process
        self._first: LeaseRecord | None = None
        self._began_at: float | None = None

    def assess(self, record: LeaseRecord | None, *, now: float) -> Liveness:
        """Judge from the records so far. now: seconds, monotonic, ours. ALIVE as soon as the counter moved."""
        if self._began_at is None:
            self._first, self._began_at = record, now
        if record is not None and record.is_over:
            return Liveness.DEAD
        if record != self._first:
            return Liveness.ALIVE
        if record is not None and record.host == self._host and not self._is_process(record.pid):
            return Liveness.DEAD
        return Liveness.DEAD if now - self._began_at >= self._watch_s else Liveness.UNKNOWN
