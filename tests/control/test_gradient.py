"""The gradient law: how it grows, when it holds, what makes it cut."""

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
from evalpipe.sim.course import Course
from evalpipe.sim.profiles import profile
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun

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
        out = permits if in_flight is None else in_flight
        self.observe(Observation(in_flight=out))
        return self.observe(Observation(in_flight=out, samples=(sample,) * count), after_s=rtt_s)

    def drop(self, count: int, *, epoch: int):
        return self.observe(Observation(samples=(Sample(Outcome.DROPPED, 0.01, epoch=epoch),) * count))

    def observe(self, observation: Observation, *, after_s: float = 0.1):
        self.now += after_s
        self.law.observe(observation)
        return self.law.decide(now=self.now)

    def round(self, **how):
        """As many answers as the law asks for: half the limit, at least 8, at most 64."""
        return self.answer(min(max(math.ceil(self.limit / 2), 8), 64), **how)


def test_slow_start_grows_by_half_a_round():
    """While latency is unloaded and the limit is in use: 16, 24, 36, 54."""
    server = Server(start=16)

    changes = [server.round() for _ in range(3)]

    assert [change.new for change in changes] == pytest.approx([24, 36, 54])
    assert {change.reason for change in changes} == {"grow"}
    assert changes[2].evidence.gradient == pytest.approx(1.0)


def test_it_starts_from_one():
    """The smallest limit grows by whole permits: eight answers a round, whatever half of one is."""
    server = Server(start=1)

    limits = [server.round().new for _ in range(4)]

    assert limits == pytest.approx([2, 3, 4.5, 6.75])


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


def test_answers_that_come_sooner_are_climbed_in_finer_steps():
    """At 0.4 s an answer a step of slow start is a fifth: it could pass the knee by no more."""
    server = Server(start=20)

    change = server.round(rtt_s=0.4)

    assert change.new == pytest.approx(24.0)


def climbed(server: Server, rounds: int = 4) -> None:
    """Let it grow at unloaded latency: every level up to here is known to be well."""
    for _ in range(rounds):
        server.round()


def test_a_queue_cuts_to_the_knee_and_its_headroom_with_its_evidence():
    """Latency in proportion to in flight above 64: at 81 the gradient is 64/81, which leaves 64, and sqrt(81) more."""
    server = Server(start=16)
    climbed(server)
    limit = server.limit

    change = server.round(rtt_s=math.floor(limit) / 64)

    assert limit == pytest.approx(81)
    assert (change.old, change.reason) == (limit, "queue")
    assert change.new == pytest.approx(64 + 9, abs=1)
    assert change.evidence.gradient == pytest.approx(64 / 81, rel=0.02)
    assert change.evidence.recent_s / change.evidence.baseline_s == pytest.approx(81 / 64, rel=0.02)
    assert change.evidence.samples == 41
    assert server.law.state.epoch == 1
    assert not server.law.state.slow_start


def test_a_collapse_cuts_before_the_round_is_full():
    """Of a round of 41, eight answers that took three times as long are enough; the cut is about a half."""
    server = Server(start=16)
    climbed(server)
    limit = server.limit

    change = server.answer(8, rtt_s=3.0)

    assert change.reason == "collapse"
    assert limit / 2 <= change.new <= 0.75 * limit


def test_growth_stops_short_of_where_it_collapsed():
    """After a rejection at 100 the limit does not pass 92 for half a minute, however well it goes."""
    server = Server(start=100)
    server.drop(1, epoch=0)

    for _ in range(20):
        server.round()

    assert server.limit == pytest.approx(92, rel=0.02)


def test_slowdown_that_batching_brings_is_no_queue():
    """Each one more in flight makes all a hundredth slower: at 81 an answer takes 1.8 times as long, and it grows."""
    server = Server(start=16)

    for _ in range(5):
        server.round(rtt_s=1.0 + 0.01 * math.floor(server.limit))

    assert server.law.state.epoch == 0
    assert server.limit > 100


def test_more_that_get_nothing_more_done_are_not_sent():
    """On a server that only shares what it has from the first request on, growth ends."""
    server = Server(start=16)

    for _ in range(30):
        server.round(rtt_s=0.1 * math.floor(server.limit))

    assert server.limit < 40


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

    mine, theirs = server.round(), twin.round()

    assert (mine.reason, mine.new) == (theirs.reason, pytest.approx(theirs.new))


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


# --- the published experiment: its server, 2,000 tasks of spread work, from a cold start at 16 ---


def run(law: str, sigma: float, start: float) -> VirtualRun:
    course = Course("cliff", profile("cliff", sigma=sigma), 2_000, prompt_median=50, prompt_sigma=0)
    return run_virtual(build_law(law, start=start), course.server(0), course.draw(0))


@pytest.mark.parametrize(("sigma", "best"), [(0.0, 50), (0.15, 54), (0.4, 49)])
def test_the_published_experiment(sigma: float, best: int):
    """Within 1.15 of the best fixed limit, no rejection, 99 of 100 answers in 2.2 times what their work takes alone."""
    ours, theirs = run("gradient", sigma, 16), run("fixed", sigma, best)

    slowdown = sorted(ours.rtt_s / ours.work / 0.4)

    assert ours.makespan_s <= 1.15 * theirs.makespan_s
    assert ours.rejections == 0
    assert slowdown[int(0.99 * len(slowdown))] <= 2.2


def test_the_published_laws_are_left_behind():
    """At most 0.30 of fixed 64 and 0.60 of the published AIMD on the same server."""
    ours = run("gradient", 0.15, 16).makespan_s

    assert ours <= 0.30 * run("fixed", 0.15, 64).makespan_s
    assert ours <= 0.60 * run("aimd-published", 0.15, 16).makespan_s
