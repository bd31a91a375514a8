"""The published BBR-like law: traces by hand."""

from dataclasses import asdict

import pytest

from evalpipe.control.build import build_law
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError


def feed(law, rtts_s, *, now, outcome=Outcome.OK):
    """Report these attempts at `now` and return the decision."""
    law.observe(Observation(samples=tuple(Sample(outcome, rtt_s) for rtt_s in rtts_s)))
    return law.decide(now=now)


def warmed(*, began_at=0.0):
    """25 answers a second of 0.4 s for two seconds, before the first decision."""
    law = build_law("bbr-published")
    feed(law, [0.4] * 25, now=began_at)
    feed(law, [0.4] * 25, now=began_at + 1.5)
    return law


def test_the_first_window_replaces_the_priors_and_probing_adds_one():
    """ceil(25/s * 0.4 s * 1.5) = 15, plus one because latency is at its minimum."""
    law = warmed()

    change = law.decide(now=2.0)

    assert (change.old, change.new, change.reason) == (20.0, 16.0, "queue")
    assert (change.evidence.state, change.evidence.baseline_s, change.evidence.samples) == ("probing", 0.4, 50)
    assert change.evidence.gradient == pytest.approx(1.0)


def test_decisions_are_two_seconds_apart():
    """At 1.99 s nothing is decided, nor at 3.99 s after a decision at 2 s."""
    law = warmed()

    moments = [1.99, 2.0, 3.99]

    assert [law.decide(now=now) is not None for now in moments] == [False, True, False]


def test_without_any_answer_the_priors_decide():
    """ceil(50/s * 0.1 s * 1.5) = 8."""
    law = build_law("bbr-published")

    law.decide(now=0.0)
    change = law.decide(now=2.0)

    assert (change.new, change.reason, change.evidence.state) == (8.0, "startup", "steady")


def test_steady_takes_the_formula_as_it_is():
    """min 0.5, mean 0.65: between 1.2 and 2 times; ceil(40 * 0.5 * 1.5) = 30."""
    law = build_law("bbr-published")

    feed(law, [0.5] * 40, now=0.0)
    feed(law, [0.8] * 40, now=1.0)
    change = law.decide(now=2.0)

    assert (change.new, change.reason, change.evidence.state) == (30.0, "grow", "steady")
    assert change.evidence.recent_s == pytest.approx(0.65)


def test_backoff_does_not_wait_for_the_decision():
    """A mean of (50 * 0.4 + 25 * 3) / 75 = 1.27 s is above 0.8 s: the formula's 15 at once, not at 4 s."""
    law = warmed()
    law.decide(now=2.0)

    change = feed(law, [3.0] * 25, now=2.1)

    assert (change.old, change.new, change.reason, change.evidence.state) == (16.0, 15.0, "queue", "backoff")
    assert law.state.epoch == 2


def test_the_rate_is_the_best_of_the_last_ten_seconds():
    """A second of 40 answers counts while it is one of ten closed ones, and no longer."""
    law = build_law("bbr-published")

    feed(law, [0.5] * 40, now=0.0)
    for second in range(1, 11):
        feed(law, [0.5] * 10, now=float(second))
    in_window = law.state.max_pass_qps
    feed(law, [0.5] * 10, now=11.0)

    assert in_window == 40.0
    assert law.state.max_pass_qps == 10.0


def test_the_minimum_outlives_the_window():
    """20 s later 0.4 s is still the unloaded latency: ceil(10 * 0.4 * 1.5) = 6."""
    law = build_law("bbr-published")

    feed(law, [0.4] * 10, now=0.0)
    feed(law, [0.8] * 10, now=20.0)
    law.decide(now=22.0)

    assert (law.state.min_rtt_s, law.state.mode, law.state.limit) == (0.4, "steady", 6.0)


def test_an_empty_window_keeps_what_was_known():
    """Answers that take longer than the window are no sign of a slower server."""
    law = warmed()

    law.decide(now=2.0)
    law.decide(now=60.0)

    assert (law.state.max_pass_qps, law.state.limit) == (25.0, 15.0)


def test_rejections_are_no_completions():
    """The publication does not count them."""
    law = build_law("bbr-published")

    feed(law, [0.01] * 100, now=0.0, outcome=Outcome.DROPPED)
    law.decide(now=1.5)

    assert law.state.is_prior
    assert law.state.buckets == []


@pytest.mark.parametrize(("rtt_s", "count", "limit"), [(0.001, 10, 6.0), (5.0, 500, 200.0)])
def test_both_published_bounds_hold(rtt_s, count, limit):
    """The formula is never below 5, and the one of probing is not added to 200."""
    law = build_law("bbr-published")

    feed(law, [rtt_s] * count, now=0.0)
    law.decide(now=2.0)

    assert law.state.limit == limit


def test_the_clock_of_the_host_does_not_matter():
    """The same trace a million seconds later decides the same."""
    assert warmed(began_at=1e6).decide(now=1e6 + 2.0) == warmed().decide(now=2.0)


def test_a_restored_law_goes_on_under_another_clock():
    """The state counts its own seconds: a resume on another host neither ages it nor freezes it."""
    first = warmed()
    first.decide(now=2.0)

    second = build_law("bbr-published", state=asdict(first.state))
    second.decide(now=0.25)
    before = second.decide(now=2.2)
    after = second.decide(now=2.25)

    assert second.state.min_rtt_s == 0.4
    assert before is None
    assert after is None  # decided at 4 s of its own clock: still 15 + 1
    assert second.state.decide_at_s == 6.0


def test_an_impossible_gain_is_refused():
    """A gain of zero would pin the limit to its floor."""
    with pytest.raises(ConfigError, match="gain"):
        build_law("bbr-published", gain=0.0)
