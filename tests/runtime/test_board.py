"""The board: totals of all workers, the dead ones included, and what bounds the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalpipe.control.core import Tick, TimedChange
from evalpipe.control.law import LimitChange
from evalpipe.runtime.messages import Counters, PollReply
from evalpipe.runtime.progress import Board, Progress

TICK = Tick(
    at=1.0,
    limit=50.0,
    in_flight=40,
    waiting=3,
    overdue=0,
    stalled=0,
    tokens_per_s=1000.0,
    requests_per_s=10.0,
    rejected=0,
    baseline_s=0.01,
    recent_s=0.02,
    gradient=0.5,
    reason="",
    workers=2,
    shadows={},
)
REPLY = PollReply(
    written=(),
    wants=0,
    queued=5,
    in_flight=20,
    unwritten=0,
    counters=Counters(finished=10, answered=9, correct=6, scored=8, retries=2, failures={"too_long": 1}),
    cpu_share=0.3,
    lag_s=0.001,
    cpu_s=1.0,
    rtt_s=(1.0, 3.0),
)


def board(*replies: PollReply, max_limit: float = 512, limit: float = 50.0, gradient: float | None = 0.5) -> Board:
    """A board that has heard one reply of each worker, and one tick."""
    made = Board(max_limit=max_limit)
    for number, reply in enumerate(replies):
        made.on_reply(f"w{number}", reply)
    made.on_records(limit, [replace(TICK, gradient=gradient)], [])
    return made


def snapshot(made: Board) -> Progress:
    return made.snapshot(elapsed_s=10.0, expected=100, ok=30, failed=10, bound_by="server")


def test_totals_add_up_over_workers():
    """Counters are totals since a process began: a newer reply replaces the older one of the same worker."""
    made = board(replace(REPLY, counters=Counters(finished=1)), REPLY)
    made.on_reply("w0", REPLY)

    shown = snapshot(made)

    assert (shown.finished, shown.answered, shown.correct, shown.scored, shown.retries) == (20, 18, 12, 16, 4)
    assert (dict(shown.failures), shown.in_flight, shown.workers) == ({"too_long": 2}, 40, 2)


def test_a_dead_worker_keeps_its_totals_and_loses_its_requests():
    """What it finished stays counted; what it had out is not in flight any more. Its successor starts from zero."""
    made = board(REPLY, REPLY)

    made.on_death("w0")
    gone = snapshot(made)
    made.on_reply("w0", replace(REPLY, counters=Counters(finished=1), in_flight=1))

    assert (gone.finished, gone.in_flight, gone.workers) == (20, 20, 1)
    assert (snapshot(made).finished, made.in_flight, made.queued) == (21, 21, 10)


def test_the_death_of_an_unknown_worker_is_nothing():
    """It may die before it ever replied."""
    made = board()

    made.on_death("w7")

    assert snapshot(made).finished == 0


@pytest.mark.parametrize(
    ("left", "reply", "options", "cause"),
    [
        (50, REPLY, {}, "server"),
        (0, replace(REPLY, queued=0), {}, "data"),
        (0, REPLY, {}, "server"),
        (50, replace(REPLY, cpu_share=0.9), {}, "client CPU"),
        (50, replace(REPLY, lag_s=0.2), {}, "client CPU"),
        (50, replace(REPLY, in_flight=46), {"max_limit": 50, "gradient": 0.9}, "limit"),
        (50, replace(REPLY, in_flight=40), {"max_limit": 50, "gradient": 0.9}, "server"),
        (50, replace(REPLY, in_flight=46), {"max_limit": 51, "gradient": 0.9}, "server"),
        (50, replace(REPLY, in_flight=46), {"max_limit": 50, "gradient": 0.7}, "server"),
        (50, replace(REPLY, in_flight=46), {"max_limit": 50, "gradient": None}, "server"),
    ],
)
def test_what_bounds_the_speed_now(left: int, reply: PollReply, options: dict, cause: str):
    """No work left: data. A busy client: its CPU. The largest limit in full use on an unloaded server: the limit."""
    assert board(reply, **options).judge(left=left, dt_s=0.5) == cause


def test_a_quota_that_held_something_back_is_what_bounds():
    """Unless the client is busy: then nobody knows what the quota would have held."""
    made = board(REPLY)
    made.on_records(50.0, [replace(TICK, is_paced=True)], [])
    paced = made.judge(left=50, dt_s=0.5)
    made.on_reply("w0", replace(REPLY, cpu_share=0.9))

    assert (paced, made.judge(left=50, dt_s=0.5)) == ("quota", "client CPU")


def test_the_run_is_bound_by_what_held_longest():
    """Weighted by time, so that a long wait counts more than many short looks."""
    made = board(REPLY)
    for _ in range(3):
        made.judge(left=50, dt_s=0.5)
    made.on_reply("w0", replace(REPLY, queued=0))

    made.judge(left=0, dt_s=2.0)

    assert made.bound_by == "data"


def test_before_any_record_nothing_is_judged():
    """Start-up is not the server's fault: a run over before it was measured is bound by its data."""
    made = Board(max_limit=512)
    made.on_reply("w0", REPLY)

    made.judge(left=50, dt_s=5.0)

    assert made.bound_by == "data"


def test_changes_are_handed_over_once_and_means_cover_all_ticks():
    """A display shows each move once; mean limit and mean in flight are over everything that was recorded."""
    made = Board(max_limit=512)
    change = TimedChange(1.0, LimitChange(16.0, 24.0, "grow"))
    made.on_records(24.0, [replace(TICK, limit=16.0, in_flight=10), replace(TICK, limit=24.0, in_flight=20)], [change])

    first, second = snapshot(made), snapshot(made)

    assert (list(first.changes), list(second.changes)) == ([change], [])
    assert (second.limit, second.mean_limit, second.mean_in_flight) == (24.0, 20.0, 15.0)


def test_quantiles_are_of_recent_answers():
    """None before any; then the median of what came in."""
    made = Board(max_limit=512)
    empty = snapshot(made)

    made.on_reply("w0", REPLY)

    assert (empty.p50_s, empty.p99_s) == (None, None)
    assert snapshot(made).p50_s == 2.0
    assert snapshot(made).p99_s == pytest.approx(2.98)


def test_time_left_is_what_is_owed_over_the_rate():
    """60 of 100 owed at 10 a second: six seconds; no rate, no guess."""
    known, unknown = snapshot(board(REPLY)), snapshot(Board(max_limit=512))

    assert (known.owed, known.eta_s) == (60, 6.0)
    assert unknown.eta_s is None
