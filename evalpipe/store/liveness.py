"""Is the driver before us still alive? A counter that it keeps raising, watched on the newcomer's own clock.

This guards against paying twice, not against wrong results: the epoch in the log does that. No two clocks are compared.
Each beat also tells how far the log had come, so that a log which lost its last entries is noticed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from evalpipe.errors import StateError
from evalpipe.store.entry import seal, unseal
from evalpipe.store.objects import ObjectStore
from evalpipe.store.process import is_process

FOLDER = "_lease/"

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

    job: Ray's submission id, "" outside a job. version: last entry of the log that it knew to be written.
    """

    epoch: int
    counter: int
    host: str
    pid: int
    job: str = ""
    is_over: bool = False
    version: int = 0

    def describe(self) -> str:
        """Return where the driver runs, for the message to the user who wants to start a second one."""
        return f"pid {self.pid} on {self.host}" + (f", job {self.job}" if self.job else "")


class Heartbeat:
    """The owner's side: raise the counter each BEAT_S. Derived data; a failed beat may be skipped.

    version: returns the last entry of the log that is known to be written; may be called from another thread.
    """

    def __init__(
        self, store: ObjectStore, epoch: int, *, job: str = "", version: Callable[[], int] = lambda: 0
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._job = job
        self._version = version
        self._counter = 0

    def beat(self) -> None:
        """Raises OSError."""
        self._write(is_over=False)

    def end(self) -> None:
        """Tell that this driver stops by itself, so that a successor need not wait. Raises OSError."""
        self._write(is_over=True)

    def _write(self, *, is_over: bool) -> None:
        self._counter += 1
        record = LeaseRecord(
            self._epoch, self._counter, socket.gethostname(), os.getpid(), self._job, is_over, self._version()
        )
        self._store.put(lease_key(self._epoch), seal(asdict(record)))


def lease_key(epoch: int) -> str:
    return f"{FOLDER}{epoch}.json"


def read_lease(store: ObjectStore, epoch: int) -> LeaseRecord | None:
    """Return what the owner of the epoch last said; None when it said nothing that can be read."""
    try:
        return load(store, lease_key(epoch))
    except StateError:
        return None


def load(store: ObjectStore, key: str) -> LeaseRecord:
    """Read one record. Raises StateError when it is damaged or of another epoch, NotFound when there is none."""
    try:
        record = LeaseRecord(**unseal(store.get(key), key=key))
    except TypeError as error:
        raise StateError(f"{key} was written by another version of evalpipe: {error}") from error
    if lease_key(record.epoch) != key:
        raise StateError(f"{key} is the lease of epoch {record.epoch}: it was written for another name")
    return record


def newest_lease(store: ObjectStore) -> LeaseRecord | None:
    """Return what the owner of the newest epoch last said; None when nobody said anything that can be read."""
    names = (key.removeprefix(FOLDER).removesuffix(".json") for key in store.list(FOLDER))
    epochs = [int(name) for name in names if name.isdecimal()]
    return read_lease(store, max(epochs)) if epochs else None


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
