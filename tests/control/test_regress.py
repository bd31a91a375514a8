"""`regress`: growth by what paid, the knee, looks around it, collapse, refusals, outage; no stream is looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.control.build import build_law
from evalpipe.control.law import LimitChange
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.sim import wide
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup


class Server:
    """A law, and a server that answers in rtt(in flight) seconds, evenly: one round of answers at a time."""

    def __init__(self, rtt: Callable[[int], float], *, start: float = 8.0, max_limit: float = 512.0, **state) -> None:
        self.law = build_law("regress", start=start, max_limit=max_limit)
        for name, value in state.items():
            setattr(self.law.state, name, value)
        self.rtt, self.now = rtt, 0.0
        self.law.decide(now=0.0)

    @property
    def limit(self) -> float:
        return self.law.state.limit

    def tick(self, *samples: Sample, in_flight: int | None = None, after_s: float = 0.1) -> LimitChange | None:
        self.now += after_s
        out = math.floor(self.limit) if in_flight is None else in_flight
        self.law.observe(Observation(in_flight=out, samples=samples))
        return self.law.decide(now=self.now)

    def answer(self, rtt_s: float) -> Sample:
        permits, epoch = math.floor(self.limit), self.law.state.epoch
        return Sample(
            Outcome.OK,
            rtt_s,
            prompt_tokens=50,
            output_tokens=100,
            epoch=epoch,
            limit=permits,
            in_flight_at_send=permits,
        )

    def round(self, *, in_flight: int | None = None) -> list[LimitChange]:
        """As many answers as are in flight, spread over the time one takes, after one time in which all were sent."""
        out = math.floor(self.limit) if in_flight is None else in_flight
        rtt_s = self.rtt(out)
        self.tick(in_flight=in_flight, after_s=rtt_s)
        ticks = [self.tick(self.answer(rtt_s), in_flight=in_flight, after_s=rtt_s / out) for _ in range(out)]
        return [change for change in ticks if change is not None]

    def rounds(self, count: int, **how) -> list[LimitChange]:
        return [change for _ in range(count) for change in self.round(**how)]


def batching(slots: int) -> Callable[[int], float]:
    """One second, 3 ms more for each that runs, and a queue beyond the slots."""
    return lambda n: (1.0 + 0.003 * min(n, slots)) * max(n / slots, 1.0)


def sharing(safe: int, until: float, collapsed_s: float) -> Callable[[int], float]:
    """Half a second up to `safe`, the same total up to `until`, then a collapse."""
    return lambda n: 0.5 if n <= safe else 0.5 * n / safe if n <= until else collapsed_s


def dropped(count: int, *, epoch: int, in_flight: int = 40) -> tuple[Sample, ...]:
    return (Sample(Outcome.DROPPED, 0.01, kind="overloaded", epoch=epoch, in_flight_at_send=in_flight),) * count


def failed(count: int, kind: str, *, epoch: int = 0) -> tuple[Sample, ...]:
    return (Sample(Outcome.IGNORED, 0.1, kind=kind, epoch=epoch),) * count


# --- growth and the knee ---


def test_it_begins_low_and_goes_to_its_start_with_the_first_answers():
    """Eight of 40 for six answers; without a level to compare with, a start in a collapse would look like any other."""
    server = Server(batching(64), start=40)
    assert server.limit == 8

    first, *_ = server.round()

    assert (first.old, first.new, first.reason) == (8, 40, "startup")


@pytest.mark.parametrize("slots", [12, 48, 96])
def test_it_finds_the_slots(slots: int):
    """From 8 it goes above them, comes back and stays near, a little above."""
    server = Server(batching(slots))

    server.rounds(15)
    limits = []
    for _ in range(15):
        server.round()
        limits.append(server.limit)

    assert 0.85 * slots <= min(limits)
    assert max(limits) <= 1.6 * slots + 2


def test_a_server_that_queues_from_the_first_request_gets_few():
    """One slot: from eight down to at most four."""
    server = Server(batching(1), start=8)

    server.rounds(60)

    assert server.limit <= 4


def test_where_more_always_pays_it_goes_to_the_top():
    """No knee in sight: the bound is reached."""
    server = Server(lambda n: 1.0 + 0.001 * n, max_limit=200)

    server.rounds(30)

    assert server.limit == 200


def test_an_unused_limit_is_no_reason_to_grow():
    """Six in flight of twenty: whatever they tell, it stays."""
    server = Server(batching(64), start=8)
    server.rounds(3)
    server.law.state.limit = 20.0

    assert server.rounds(10, in_flight=6) == []


def test_settled_it_looks_around_less_and_less_often():
    """Looks go up and down in turn and come back; the time between two grows."""
    server = Server(batching(12))
    server.rounds(20)

    holds, changes = [], []
    for _ in range(30):
        changes += server.round()
        holds.append(server.law.state.hold)

    assert {change.reason for change in changes} <= {"grow", "queue"}
    assert max(holds) > 4.0


# --- collapse ---


def test_work_that_fails_to_come_back_cuts_to_what_was_best():
    """Beyond 55 an answer takes 7 s instead of half a one: one cut, and the level is remembered."""
    server = Server(sharing(45, 55, 7.0), start=8)
    for _ in range(12):
        if server.limit > 56:
            break
        server.round()
    out = math.floor(server.limit)

    changes = []
    while not changes:
        changes = [change for _ in range(20) if (change := server.tick(in_flight=out)) is not None] or [
            change for _ in range(3) if (change := server.tick(server.answer(3.0), in_flight=out)) is not None
        ]

    assert out > 56
    assert [change.reason for change in changes] == ["collapse"]
    assert changes[0].new <= 0.92 * out
    assert server.law.state.ceiling.level == out


def test_while_what_is_out_drains_nothing_more_is_cut():
    """One episode, one cut; where work flows again the limit stays, without waiting for the rest to drain."""
    server = Server(batching(64), start=40)
    server.rounds(4)
    out, epoch = math.floor(server.limit), server.law.state.epoch
    while server.law.state.epoch == epoch:
        server.tick(server.answer(4.0), in_flight=out, after_s=0.2)
    cut_to = server.limit

    draining = [server.tick(in_flight=out - 3) for _ in range(50)]
    flowing = [server.tick(server.answer(1.1), in_flight=out - 3, after_s=0.015) for _ in range(8)]

    assert cut_to < out - 3
    assert draining == [None] * 50
    (back,) = [change for change in flowing if change is not None]
    assert (back.reason, back.old) == ("grow", cut_to)
    assert cut_to < back.new <= out


# --- refusals ---


def test_a_burst_of_rejections_cuts_once():
    """All of one epoch are one episode; those sent after the cut are another."""
    server = Server(batching(64), start=40, mode="cruise")
    server.law.state.limit = 40.0

    changes = [server.tick(*dropped(20, epoch=0)), server.tick(*dropped(5, epoch=0))]
    again = server.tick(*dropped(1, epoch=1, in_flight=32))

    assert (changes[0].reason, changes[0].new) == ("rejected", pytest.approx(32.0))
    assert changes[1] is None
    assert (again.reason, again.new) == ("rejected", pytest.approx(25.6))


def test_a_ceiling_met_again_a_little_higher_stays_where_it_was():
    """Else each collapse would allow the next one more."""
    server = Server(batching(64), start=40, mode="cruise")
    server.law.state.limit = 40.0
    server.tick(*dropped(1, epoch=0, in_flight=40))
    server.law.state.limit = 42.0

    server.tick(*dropped(1, epoch=1, in_flight=42))

    assert server.law.state.ceiling.level == 40.0


def test_a_timeout_cuts_a_fifth_and_an_items_own_fault_nothing():
    """Once an epoch too."""
    server = Server(batching(64), start=8)

    assert server.tick(*failed(1, "bad_request")) is None
    change = server.tick(*failed(1, "timeout"))

    assert (change.reason, change.new) == ("timeout", pytest.approx(6.4))
    assert server.tick(*failed(1, "timeout")) is None


# --- outage ---


def test_an_outage_waits_at_the_floor_for_the_first_answer():
    """Half a limit's worth of failures in a row, then one at a time; the first answer brings half of it back."""
    server = Server(batching(64), start=40, mode="cruise")
    server.law.state.limit = 40.0

    changes = [server.tick(*failed(5, "connect_failed")) for _ in range(10)]
    up = server.tick(server.answer(1.0))

    assert [(c.reason, c.new) for c in changes if c is not None] == [("outage", 1.0)]
    assert (up.reason, up.new, server.law.state.mode) == ("outage", 20.0, "startup")


def test_failures_among_answers_are_no_outage():
    """The retries' business."""
    server = Server(batching(64), start=8)

    for _ in range(20):
        server.tick(*failed(3, "server_error"), server.answer(1.0))

    assert server.law.state.mode != "outage"


# --- what it does not look at, and what is handed over ---


def test_streams_are_not_looked_at():
    """With or without first tokens, waiting, stuck and tokens the law does the same."""
    blind, seeing = Server(batching(48)), Server(batching(48))

    for _ in range(300):
        rtt_s = blind.rtt(math.floor(blind.limit))
        gap_s = rtt_s / math.floor(blind.limit)
        blind.tick(blind.answer(rtt_s), after_s=gap_s)
        seeing.now += gap_s
        permits = math.floor(seeing.limit)
        first = (FirstTokens(5, 3, 3, 0.4),)
        seen = Observation(
            in_flight=permits, waiting=9, overdue=9, stalled=2, output_tokens=700, samples=(seeing.answer(rtt_s),)
        )
        seeing.law.observe(Observation(**{**asdict(seen), "samples": seen.samples, "first_tokens": first}))
        seeing.law.decide(now=seeing.now)

    assert blind.law.state == seeing.law.state


def test_a_restored_law_knows_the_levels():
    """Through JSON, and then it finds the knee at once."""
    server = Server(batching(48))
    server.rounds(20)

    twin = build_law("regress", state=json.loads(json.dumps(asdict(server.law.state))))

    assert twin.state == server.law.state
    assert len(twin.state.survey.levels) > 5


SAMPLES = st.builds(
    Sample,
    outcome=st.sampled_from(Outcome),
    rtt_s=st.floats(0.0, 1e4),
    kind=st.sampled_from(["ok", "timeout", "reset", "bad_request", "connect_failed"]),
    prompt_tokens=st.integers(0, 100_000),
    output_tokens=st.integers(0, 100_000),
    epoch=st.integers(0, 6),
    limit=st.integers(1, 600),
    in_flight_at_send=st.integers(0, 200),
)
OBSERVATIONS = st.builds(
    Observation,
    in_flight=st.integers(0, 200),
    in_flight_peak=st.integers(0, 200),
    samples=st.lists(SAMPLES, max_size=12).map(tuple),
)
STEPS = st.lists(st.tuples(OBSERVATIONS, st.sampled_from([0.0, 0.1, 0.1, 0.5, 60.0])), max_size=60)


@given(STEPS, st.sampled_from([(1, 1, 1), (1, 16, 512), (3, 7, 9), (2, 100, 1024)]))
@settings(max_examples=150, deadline=None)
def test_whatever_is_seen(steps, limits):
    """The limit stays in its bounds; unused it does not grow; each cut is an epoch, and one decision one cut."""
    low, start, high = limits
    law, now = build_law("regress", min_limit=low, start=start, max_limit=high), 0.0
    for observation, gap_s in steps:
        old, epoch, now = law.state.limit, law.state.epoch, now + gap_s
        law.observe(observation)
        change = law.decide(now=now)

        assert low <= law.state.limit <= high
        assert law.state.epoch - epoch == (law.state.limit < old)
        assert (change is None) == (law.state.limit == old)
        is_used = max(observation.in_flight, observation.in_flight_peak) >= 0.8 * math.floor(old)
        assert law.state.limit <= old or is_used or change.reason == "outage"

    json.dumps(asdict(law.state), allow_nan=False)


# --- on servers: kind and draw: (best fixed limit by `evalpipe sim race --suite wide`, most over its makespan) ---

BEST = {("8 slots", 1): (10, 1.05), ("64 slots", 1): (67, 1.10), ("cliff, work spread 0.15", 1): (48, 1.20)}


@pytest.mark.parametrize(("kind", "number"), BEST)
@pytest.mark.parametrize("start", [8, 16])
def test_it_is_near_the_best_fixed_limit(kind: str, number: int, start: int):
    """On a batching server and on one of shared capacity that collapses, without a look at any stream."""
    limit, most = BEST[kind, number]

    best, ours = run(kind, number, "fixed", limit), run(kind, number, "regress", start)

    assert ours.unfinished == 0
    assert ours.makespan_s <= most * best.makespan_s


def run(kind: str, number: int, law: str, start: float) -> VirtualRun:
    course, horizon = wide.draw(kind, number), VirtualSetup(horizon_s=5e3)
    return run_virtual(build_law(law, start=start), course.server(0), course.draw(0), setup=horizon)
