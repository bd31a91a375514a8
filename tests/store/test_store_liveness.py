"""Watching the other driver's counter on one's own clock."""

from __future__ import annotations

import os

import pytest
from store_rows import flip_byte

from evalpipe.store.liveness import (
    Heartbeat,
    LeaseRecord,
    Liveness,
    Watcher,
    lease_key,
    newest_lease,
    read_lease,
)
from evalpipe.store.local import LocalStore
from evalpipe.store.process import is_process


def record(counter: int, *, host: str = "there", pid: int = 7, is_over: bool = False) -> LeaseRecord:
    return LeaseRecord(epoch=1, counter=counter, host=host, pid=pid, is_over=is_over)


@pytest.mark.parametrize(
    ("sightings", "verdict"),
    [
        ([(0.0, record(5))], Liveness.UNKNOWN),
        ([(0.0, record(5)), (19.9, record(5))], Liveness.UNKNOWN),
        ([(0.0, record(5)), (20.0, record(5))], Liveness.DEAD),
        ([(0.0, record(5)), (3.0, record(6))], Liveness.ALIVE),
        ([(0.0, record(5)), (25.0, record(6))], Liveness.ALIVE),
        ([(0.0, None), (19.0, None)], Liveness.UNKNOWN),
        ([(0.0, None), (20.0, None)], Liveness.DEAD),
        ([(0.0, None), (4.0, record(1))], Liveness.ALIVE),
        ([(0.0, record(5, host="here", pid=404))], Liveness.DEAD),
        ([(0.0, record(5, host="here", pid=7))], Liveness.UNKNOWN),
        ([(0.0, record(5, host="there", pid=404))], Liveness.UNKNOWN),
        ([(0.0, record(5, is_over=True))], Liveness.DEAD),
        ([(0.0, record(5)), (3.0, record(6, is_over=True))], Liveness.DEAD),
    ],
)
def test_verdicts(sightings: list[tuple[float, LeaseRecord | None]], verdict: Liveness):
    """Alive if the counter moves; dead if it stands for the whole watch, its process is gone here, or it said so."""
    watcher = Watcher(host="here", watch_s=20.0, is_process=lambda pid: pid != 404)

    verdicts = [watcher.assess(seen, now=1000.0 + at) for at, seen in sightings]

    assert verdicts[-1] is verdict


def test_each_beat_moves_the_counter(store: LocalStore):
    """And says where the owner is, for the one who is refused."""
    heartbeat = Heartbeat(store, 3, job="job-1")
    heartbeat.beat()
    first = read_lease(store, 3)
    heartbeat.beat()
    second = read_lease(store, 3)
    heartbeat.end()
    last = read_lease(store, 3)

    assert first is not None and second is not None and last is not None
    assert (first.counter, second.counter, last.counter) == (1, 2, 3)
    assert (first.pid, first.is_over, last.is_over) == (os.getpid(), False, True)
    assert f"pid {os.getpid()} on " in first.describe() and "job job-1" in first.describe()


def test_a_beat_tells_how_far_the_log_had_come(store: LocalStore):
    """Of several drivers the newest counts: ten is after nine, whatever the alphabet says."""
    version = iter((7, 9, 12))
    for epoch in (9, 10):
        Heartbeat(store, epoch, version=lambda: next(version)).beat()
    store.put("_lease/notes.txt", b"by hand")

    newest = newest_lease(store)

    assert newest is not None
    assert (newest.epoch, newest.version) == (10, 9)


def test_nobody_has_said_anything_yet(store: LocalStore):
    """A run that never began has no lease."""
    assert newest_lease(store) is None


def test_an_unreadable_record_is_none(store: LocalStore):
    """It decides nothing but how long to wait."""
    store.put(lease_key(1), b'{"epoch": 1}')
    store.put(lease_key(2), b"\xff")

    Heartbeat(store, 4).beat()
    flip_byte(store, lease_key(4), at=20)

    assert [read_lease(store, epoch) for epoch in (1, 2, 3, 4)] == [None] * 4


def test_our_own_process_exists():
    """And pid 1 does too, whoever owns it."""
    assert is_process(os.getpid()) and is_process(1)
