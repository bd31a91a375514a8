"""The gradient law, first form: how it grows, when it holds, what makes it cut."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.control.build import build_law
from evalpipe.control.law import Bounds
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError

UNIT_RTT_S = 1.0  # of the one prompt and answer length used here


class Server:
    """Feeds a law one round of equal answers at a time, at a latency and a number in flight of the test's choice."""

    def __init__(self, **options) -> None:
        self.law = build_law("gradient", **options)
        self.now = 0.0

    @property
    def limit(self) -> float:
        return self.law.state.limit

    def answer(self, count: int, *, rtt_s: float = UNIT_RTT_S, in_flight: int | None = None, limit: int | None = None):
        permits = math.floor(self.limit)
        sample = Sample(
            Outcome.OK,
            rtt_s,
            prompt_tokens=100,
            output_tokens=100,
            epoch=self.law.state.epoch,
            limit=permits if limit is None else limit,
        )
        return self.observe(
            Observation(in_flight=permits if in_flight is None else in_flight, samples=(sample,) * count)
        )

    def drop(self, count: int, *, epoch: int):
        return self.observe(Observation(samples=(Sample(Outcome.DROPPED, 0.01, epoch=epoch),) * count))

    def observe(self, observation: Observation):
        self.now += 0.1
        self.law.observe(observation)
        return self.law.decide(now=self.now)

    def round(self, **how):
        """As many answers as the law asks for: half the limit, at least 8, at most 64."""
        return self.answer(min(max(math.ceil(self.limit / 2), 8), 64), **how)


def test_slow_start_grows_by_half_a_round():
    """While latency is unloaded and the limit is in use: 16, 24, 36, 54."""
    server = Server(start=16)

    changes = [server.round() for _ in range(3)]

    assert [(c.old, c.new, c.reason) for c in changes] == [(16, 24, "grow"), (24, 36, "grow"), (36, 54, "grow")]
    assert changes[2].evidence.gradient == pytest.approx(1.0)


def test_it_starts_from_one():
    """The smallest limit grows like any other: eight answers a round, whatever half of one is."""
    server = Server(start=1)

    limits = [server.round().new for _ in range(4)]

    assert limits == [1.5, 2.25, 3.375, 5.0625]


@pytest.mark.parametrize(("limit", "needed"), [(16, 8), (100, 50), (400, 64)])
def test_a_round_is_half_a_limits_worth(limit: int, needed: int):
    """One answer less moves nothing."""
    server = Server(start=limit)

    before = server.answer(needed - 1)
    after = server.answer(1)

    assert before is None
    assert after.new == pytest.approx(min(limit * 1.5, 512))


def test_answers_sent_under_another_limit_do_not_count():
    """What was sent before the last move says nothing about the limit after it."""
    server = Server(start=16)

    assert server.answer(100, limit=12) is None


def test_an_unused_limit_is_held():
    """With 14 of 16 in flight growth would bank headroom that nobody tested; with 15 it grows."""
    server = Server(start=16)

    held = server.round(in_flight=14)
    grown = server.round(in_flight=15)

    assert held is None
    assert grown.new == 24


def test_after_slow_start_growth_is_a_square_root():
    """Once cut, a round at unloaded latency adds sqrt(limit)."""
    server = Server(start=100)
    server.drop(1, epoch=0)

    change = server.round()

    assert (change.old, change.new, change.reason) == (70, pytest.approx(70 + math.sqrt(70)), "grow")


def test_a_queue_cuts_with_its_evidence():
    """At twice the unloaded latency: gradient 0.5, times the tolerance 1.6 leaves 0.8 of the limit, plus headroom."""
    server = Server(start=64)
    server.round()

    change = server.round(rtt_s=2 * UNIT_RTT_S)

    assert (change.old, change.reason) == (96, "queue")
    assert change.new == pytest.approx(0.8 * 96 + math.sqrt(96))
    assert change.evidence.gradient == pytest.approx(0.5)
    assert change.evidence.recent_s / change.evidence.baseline_s == pytest.approx(2.0)
    assert change.evidence.samples == 48
    assert server.law.state.epoch == 1
    assert not server.law.state.slow_start


def test_a_collapse_at_most_halves():
    """At ten times the unloaded latency the cut is a half and its headroom, called by its name."""
    server = Server(start=64)
    server.round()

    change = server.round(rtt_s=10 * UNIT_RTT_S)

    assert (change.old, change.reason) == (96, "collapse")
    assert change.new == pytest.approx(48 + math.sqrt(96))


def test_growth_stops_short_of_where_it_collapsed():
    """Within a minute of a rejection at 100 the limit does not pass 85, however well it goes."""
    server = Server(start=100)
    server.drop(1, epoch=0)

    for _ in range(20):
        server.round()

    assert server.limit == pytest.approx(85)


def test_slowdown_within_the_tolerance_is_no_queue():
    """Batching makes each request slower before any of them waits: 1.5 times is still growth."""
    server = Server(start=64)
    server.round()

    change = server.round(rtt_s=1.5 * UNIT_RTT_S)

    assert (change.old, change.new, change.reason) == (96, 144, "grow")


def test_long_answers_are_not_mistaken_for_load():
    """Latency in proportion to the answer's length, ten times longer all at once, cuts nothing."""
    server = Server(start=32)
    for output in [20, 40, 80, 160, 320] * 20 + [800] * 64:
        sample = Sample(Outcome.OK, 0.01 * (output + 10), output_tokens=output, limit=math.floor(server.limit))
        server.observe(Observation(in_flight=math.floor(server.limit), samples=(sample,)))

    assert server.law.state.epoch == 0
    assert server.limit > 32


def test_one_burst_cuts_once():
    """Drops of one epoch, in one observation or in several, are one episode; one of the next epoch is another."""
    server = Server(start=100)

    first = server.drop(7, epoch=0)
    stragglers = [server.drop(3, epoch=0), server.drop(1, epoch=0)]
    second = server.drop(2, epoch=1)

    assert (first.old, first.new, first.reason) == (100, 70, "rejected")
    assert stragglers == [None, None]
    assert (second.new, server.law.state.epoch) == (pytest.approx(49), 2)


def test_ignored_failures_teach_nothing():
    """A lone reset is neither latency nor overload."""
    server = Server(start=16)

    change = server.observe(Observation(samples=(Sample(Outcome.IGNORED, 30.0, kind="reset"),) * 50))

    assert change is None
    assert server.limit == 16


def test_at_the_floor_a_rejection_moves_nothing():
    """No change is reported where nothing changed, and the bound is kept."""
    server = Server(start=4, min_limit=4)

    assert server.drop(5, epoch=0) is None
    assert server.limit == 4


def test_a_restored_law_goes_on_where_it_was():
    """The state survives JSON: the same next round gives the same change."""
    server, twin = Server(start=16), Server(start=16)
    server.round()
    state = json.loads(json.dumps(asdict(server.law.state)))
    twin.law, twin.now = build_law("gradient", state=state), server.now

    assert twin.round() == server.round()


@pytest.mark.parametrize("options", [{"tolerance": 0.9}, {"ramp": 0.5}, {"drop_factor": 1.0}, {"drop_factor": 0.0}])
def test_impossible_options_are_refused(options: dict):
    """A law that could not work is not built, and the message shows what was given."""
    with pytest.raises(ConfigError, match="gradient: tolerance and ramp must be >= 1"):
        build_law("gradient", **options)


SAMPLE = st.builds(
    Sample,
    st.sampled_from(Outcome),
    rtt_s=st.one_of(st.just(0.0), st.floats(1e-6, 1e5)),
    prompt_tokens=st.integers(0, 200_000),
    output_tokens=st.integers(0, 200_000),
    epoch=st.integers(0, 5),
)
STEP = st.tuples(st.integers(0, 600), st.integers(1, 80), SAMPLE, st.floats(0.0, 400.0))


@given(st.lists(STEP, max_size=60), st.sampled_from([(1, 1, 1), (1, 16, 512), (3, 7, 9)]))
@settings(max_examples=200, deadline=None)
def test_whatever_comes_the_limit_stays_a_number_within_its_bounds(steps, bounds):
    """No mix of latencies, token counts, drops and gaps of minutes gives NaN or leaves the bounds."""
    low, start, high = bounds
    law = build_law("gradient", min_limit=low, start=start, max_limit=high)
    now, limit = 0.0, float(start)
    for in_flight, count, sample, gap_s in steps:
        now += gap_s
        stamped = Sample(**{**asdict(sample), "limit": math.floor(law.state.limit)})
        law.observe(Observation(in_flight=in_flight, samples=(stamped,) * count))
        change = law.decide(now=now)

        assert Bounds(start, low, high).clamp(law.state.limit) == law.state.limit
        if change is None:
            assert law.state.limit == limit
        else:
            assert (change.old, change.new) == (limit, law.state.limit)
            assert (change.new < change.old) == (change.reason != "grow")
        limit = law.state.limit
