"""AIMD, ours and the published form: traces computed by hand."""

import pytest

from evalpipe.control.build import build_law
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError


def observation(*, ok=0, ignored=0, dropped=0, epoch=0, peak=1000):
    """`peak` in flight by default far above any limit here: the limit binds."""
    outcomes = [Outcome.OK] * ok + [Outcome.IGNORED] * ignored + [Outcome.DROPPED] * dropped
    return Observation(in_flight_peak=peak, samples=tuple(Sample(outcome, 0.4, epoch=epoch) for outcome in outcomes))


def test_one_success_adds_its_share_of_one():
    """At a limit of 4 a success is worth a quarter of a permit."""
    law = build_law("aimd", start=4)

    law.observe(observation(ok=1))
    change = law.decide(now=0.0)

    assert (change.old, change.new, change.reason) == (4.0, 4.25, "grow")
    assert change.evidence.samples == 1


def test_a_limit_of_successes_adds_about_one():
    """16 successes at 16 add one permit, a little less because the limit grows meanwhile."""
    law = build_law("aimd", start=16)

    law.observe(observation(ok=16))

    assert law.decide(now=0.0).new == pytest.approx(16.97, abs=0.01)


def test_a_burst_of_drops_cuts_once():
    """A drop granted before the last cut says nothing about the new limit."""
    law = build_law("aimd", start=100, min_limit=1, max_limit=200)

    law.observe(observation(dropped=2, epoch=0))
    first = law.decide(now=1.0)
    law.observe(observation(dropped=5, epoch=0))
    second = law.decide(now=2.0)

    assert (first.new, first.reason) == (50.0, "rejected")
    assert second is None
    assert law.state.epoch == 1


def test_a_drop_of_the_new_epoch_cuts_again():
    """The next episode begins with what was sent after the cut."""
    law = build_law("aimd", start=100)

    law.observe(observation(dropped=1, epoch=0))
    law.observe(observation(dropped=3, epoch=1))

    assert law.decide(now=1.0).new == 25.0
    assert law.state.epoch == 2


def test_stale_successes_do_not_grow():
    """Answers to requests sent under the old limit are no reason to grow the new one."""
    law = build_law("aimd", start=100)

    law.observe(observation(dropped=1, epoch=0))
    law.observe(observation(ok=50, epoch=0))

    assert law.decide(now=1.0).new == 50.0


@pytest.mark.parametrize(("peak", "grows"), [(15, True), (14, False)])
def test_growth_needs_nine_tenths_in_use(peak, grows):
    """Of 16 permits 15 are in use, 14 are not (14.4 is the line)."""
    law = build_law("aimd", start=16)

    law.observe(observation(ok=10, peak=peak))

    assert (law.decide(now=0.0) is not None) is grows


def test_one_permit_binds_although_the_limit_is_nearly_two():
    """A fractional limit is judged by the permits it grants, else 1.9 would never become 2."""
    law = build_law("aimd", start=1.9)

    law.observe(observation(ok=1, peak=1))

    assert law.decide(now=0.0).new == pytest.approx(2.426, abs=1e-3)


def test_ignored_outcomes_teach_nothing():
    """Timeouts and the item's own faults neither cut nor grow."""
    law = build_law("aimd", start=16)

    law.observe(observation(ignored=100))

    assert law.decide(now=0.0) is None


def test_a_cut_at_the_floor_moves_nothing_but_counts():
    """At min_limit there is nothing to cut, and still the episode is over."""
    law = build_law("aimd", start=4, min_limit=4)

    law.observe(observation(dropped=3))

    assert law.decide(now=0.0) is None
    assert law.state.epoch == 1


def test_published_halves_on_each_rejection():
    """Three rejections of one burst divide by eight, whatever epoch they were sent in."""
    law = build_law("aimd-published", start=100)

    law.observe(observation(dropped=3, epoch=0))

    assert law.decide(now=0.0).new == 12.5


def test_published_grows_unused_and_stays_within_its_bounds():
    """The published form asks neither for use nor for epochs; 2 and 128 are its bounds."""
    law = build_law("aimd-published", start=127.5)

    law.observe(observation(ok=1000, peak=0))
    grown = law.decide(now=0.0).new
    law.observe(observation(dropped=20))
    cut = law.decide(now=1.0).new

    assert (grown, cut) == (128.0, 2.0)


@pytest.mark.parametrize("options", [{"cut": 1.0}, {"cut": 0.0}, {"increase": 0.0}])
def test_impossible_options_are_refused(options):
    """A cut that does not cut, or growth that does not grow, is a mistake."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        build_law("aimd", **options)
