"""`gradient2`: traces worked out by hand from the formulas of Netflix's concurrency-limits, and its guards."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.control.gradient2 import Gradient2Law, LongAverage
from evalpipe.control.law import Bounds, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError


class Windows:
    """A law that is shown one window of equal answers after another. The first sample of all closes an empty window."""

    def __init__(self, *, start: float = 20.0, low: float = 20.0, high: float = 200.0, **options) -> None:
        self.law = Gradient2Law(Bounds(start, low, high), **options)
        self.now = 0.0
        self.see(1, 1.0)

    @property
    def limit(self) -> float:
        return self.law.state.limit

    def see(
        self, count: int, rtt_s: float, *, in_flight: int = 200, outcome: Outcome = Outcome.OK
    ) -> LimitChange | None:
        """All but the last come within the window; the last closes it."""
        self.now += 1.01
        sample = Sample(outcome, rtt_s, in_flight_at_send=in_flight)
        self.law.observe(Observation(samples=(sample,) * (count - 1)))
        assert self.law.decide(now=self.now - 0.5) is None
        self.law.observe(Observation(samples=(sample,)))
        return self.law.decide(now=self.now)

    def windows(self, count: int, rtt_s: float, **how) -> list[LimitChange]:
        return [change for _ in range(count) if (change := self.see(10, rtt_s, **how)) is not None]


def test_steady_latency_adds_a_fifth_of_four_a_window():
    """0.8 * 20 + 0.2 * (20 * 1 + 4) = 20.8, then 21.6, 22.4."""
    windows = Windows()

    changes = windows.windows(3, 1.0)

    assert [change.new for change in changes] == pytest.approx([20.8, 21.6, 22.4])
    assert {change.reason for change in changes} == {"grow"}


def test_three_times_the_latency_cuts():
    """After ten windows of 1 s (limit 28): long = 1 * 599/601 + 3 * 2/601 = 605/601, gradient = 1.5 * 605 / 1803."""
    windows = Windows()
    windows.windows(10, 1.0)

    (change,) = windows.windows(1, 3.0)

    assert change.old == pytest.approx(28.0)
    assert change.new == pytest.approx(0.8 * 28 + 0.2 * (28 * 1.5 * 605 / 1803 + 4))
    assert change.reason == "queue"
    assert (change.evidence.baseline_s, change.evidence.recent_s) == (pytest.approx(605 / 601), pytest.approx(3.0))
    assert windows.law.state.epoch == 1


def test_the_gradient_is_never_below_a_half():
    """Ten times the latency: 0.8 * 28 + 0.2 * (14 + 4) = 26."""
    windows = Windows()
    windows.windows(10, 1.0)

    (change,) = windows.windows(1, 10.0)

    assert change.new == pytest.approx(26.0)


def test_the_tolerance_lets_half_as_much_again_pass():
    """In the warm-up the long average is a plain mean: of 1 and 1.5 it is 1.25, and 1.5 * 1.25 / 1.5 is above 1."""
    windows = Windows()
    windows.windows(1, 1.0)

    (change,) = windows.windows(1, 1.5)

    assert change.new == pytest.approx(21.6)


def test_the_long_average_follows_a_fall_faster():
    """Ten windows of 3 s, then 1 s: long is 1799/601 > 2, so it loses 5 % more, after the gradient was taken."""
    windows = Windows()
    windows.windows(10, 3.0)

    (change,) = windows.windows(1, 1.0)

    assert change.evidence.baseline_s == pytest.approx(1799 / 601)
    assert windows.law.state.long.value_s == pytest.approx(0.95 * 1799 / 601)


def test_after_the_warm_up_the_average_is_exponential():
    """The mean of ten, then a factor of 2 / (window + 1)."""
    average = LongAverage()
    for value_s in range(1, 11):
        average.add(float(value_s), window=3)

    assert average.value_s == pytest.approx(5.5)
    assert average.add(7.5, window=3) == pytest.approx(0.5 * 5.5 + 0.5 * 7.5)


def test_a_thin_window_is_thrown_away():
    """Nine samples in a second move nothing, and are no part of the next window or of the average."""
    windows = Windows()

    assert windows.see(9, 9.0) is None
    (change,) = windows.windows(1, 1.0)

    assert change.evidence.recent_s == pytest.approx(1.0)
    assert change.evidence.baseline_s == pytest.approx(1.0)


def test_a_limit_half_used_is_held():
    """Nine in flight of 20: the average learns, the limit stays. With ten it grows."""
    windows = Windows()

    assert windows.windows(1, 1.0, in_flight=9) == []
    assert windows.law.state.long.count == 1
    assert len(windows.windows(1, 1.0, in_flight=10)) == 1


def test_rejections_are_samples_and_ignored_failures_are_none():
    """The flag of a drop is ignored, its latency counts; what is shorter than 0.1 ms does not."""
    windows = Windows()

    assert len(windows.windows(1, 0.01, outcome=Outcome.DROPPED)) == 1
    assert windows.windows(1, 1.0, outcome=Outcome.IGNORED) == []
    assert windows.windows(1, 5e-5) == []


def test_bounds_hold():
    """It stops at 22 and then says nothing."""
    windows = Windows(high=22.0)

    changes = windows.windows(5, 1.0)

    assert [change.new for change in changes] == pytest.approx([20.8, 21.6, 22.0])


@pytest.mark.parametrize(
    "options", [{"tolerance": 0.9}, {"queue_size": -1.0}, {"smoothing": 0.0}, {"smoothing": 1.1}, {"long_window": 0}]
)
def test_impossible_options_are_refused(options: dict):
    """The message names the law."""
    with pytest.raises(ConfigError, match="gradient2"):
        Gradient2Law(Bounds(20, 20, 200), **options)


SAMPLE = st.builds(Sample, st.sampled_from(Outcome), rtt_s=st.floats(0.0, 1e5), in_flight_at_send=st.integers(0, 300))
STEPS = st.lists(st.tuples(SAMPLE, st.integers(1, 30), st.floats(0.0, 100.0)), max_size=40)


@given(STEPS, st.sampled_from([(20, 20, 200), (1, 1, 1), (2, 16, 17)]))
@settings(max_examples=100, deadline=None)
def test_whatever_comes(steps, limits):
    """The limit stays within its bounds, unused it does not grow, a decision cuts once, and JSON carries it all."""
    low, start, high = min(limits), limits[1], max(limits)
    law, now = Gradient2Law(Bounds(start, low, high)), 0.0
    for sample, count, gap_s in steps:
        old, epoch, now = law.state.limit, law.state.epoch, now + gap_s
        most = max(law.state.window.most_in_flight, sample.in_flight_at_send)
        law.observe(Observation(samples=(sample,) * count))
        law.decide(now=now)

        assert low <= law.state.limit <= high
        assert law.state.epoch - epoch == (law.state.limit < old)
        assert law.state.limit <= old or most >= old / 2

    assert json.loads(json.dumps(asdict(law.state), allow_nan=False))["limit"] == law.state.limit
