"""Waiting until it is sure that no other driver works on a run: before anything is sent."""

from __future__ import annotations

import socket
from collections.abc import Callable

from evalpipe.errors import Fenced
from evalpipe.runtime.clock import REAL, Clock
from evalpipe.store.liveness import LeaseRecord, Liveness, Watcher, read_lease
from evalpipe.store.objects import ObjectStore

WATCH_EVERY_S = 1.0


def await_silence(store: ObjectStore, epoch: int, *, say: Callable[[str], None], clock: Clock = REAL) -> None:
    """Make sure that no other driver works on this run: watch its counter on our own clock.

    Raises Fenced, naming where it runs, when it lives.
    """
    if epoch == 0:
        return
    watcher = Watcher(host=socket.gethostname())
    is_told = False
    while True:
        record = read_lease(store, epoch)
        verdict = watcher.assess(record, now=clock.now())
        if verdict is Liveness.DEAD:
            return
        if verdict is Liveness.ALIVE:
            raise Fenced(_is_alive(record))
        if not is_told:
            where = record.describe() if record is not None else "unknown"
            say(f"another driver may be at work ({where}); watching up to 20 s whether it lives (--takeover skips)")
            is_told = True
        clock.sleep(WATCH_EVERY_S)


def _is_alive(record: LeaseRecord | None) -> str:
    where = record.describe() if record is not None else "elsewhere"
    return f"another driver works on this run ({where}); wait for it, or take over with --takeover"
