"""The learned rate: accepted / elapsed between two moments at which the quota is used up, grown when all is clean."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evalpipe.control.learned import MARGIN, Learned


def used_up(learned: Learned, at: float, *, closed_s: float) -> None:
    """A request was refused for a quota; since `at` the server accepts again."""
    learned.prove(now=at - closed_s)
    learned.on_opened(at, closed_s=closed_s)


def proven(*, accepted: int = 120, at: float = 10.0) -> Learned:
    """So many requests were accepted in the first seconds; then one was refused for a quota."""
    learned = Learned()
    learned.on_begun(0, now=0.0)
    learned.on_begun(accepted, now=at)
    learned.prove(now=at)
    return learned


def cruising(rate: float = 5.0) -> Learned:
    """A rate is known: found between two refusals 20 s apart."""
    learned = proven()
    used_up(learned, 10.0, closed_s=1.0)
    learned.on_begun(round(20 * rate), now=30.0)
    used_up(learned, 30.0, closed_s=1.0)
    return learned


def test_nothing_is_known_before_a_refusal():
    """No quota is assumed where none was met."""
    learned = Learned()
    learned.on_begun(1000, now=1.0)
    learned.advance(5.0)

    assert (learned.rate, learned.bound(now=9.0)) == (None, None)


def test_the_first_estimate_holds_a_burst_and_is_halved():
    """12 a second were accepted until then, most of them from a full bucket: go on at 6, and feel upward."""
    learned = proven()
    used_up(learned, 10.0, closed_s=1.0)
    before = learned.rate
    learned.advance(1.0)

    assert (before, learned.rate) == (pytest.approx(6.0), pytest.approx(6.3))


def test_between_two_refusals_the_count_is_the_rate():
    """100 accepted in 20 s from one refusal to the next: 5 a second, and three per cent less is asked for."""
    assert cruising().rate == pytest.approx(MARGIN * 5.0)


def test_a_window_tells_its_rate_at_once():
    """300 in the first 20 s, then nothing for 40: 300 a minute, whatever the speed at which they went."""
    learned = proven(accepted=300, at=20.0)
    used_up(learned, 60.0, closed_s=40.0)

    assert learned.rate == pytest.approx(MARGIN * 5.0)


def test_a_slow_start_does_not_hide_what_a_window_holds():
    """One minute used for 60 of 300, the next for all 300 in 40 s: the quota is 300, not the mean of both."""
    learned = Learned()
    learned.on_begun(0, now=0.0)
    learned.on_begun(60, now=59.0)
    learned.on_begun(300, now=100.0)
    learned.prove(now=100.0)
    used_up(learned, 120.0, closed_s=20.0)

    assert learned.rate == pytest.approx(MARGIN * 5.0, rel=0.02)


def test_refused_requests_are_not_counted_as_accepted():
    """130 went out in 20 s and 30 came back refused: 100 were accepted."""
    learned = proven()
    used_up(learned, 10.0, closed_s=1.0)
    learned.on_begun(130, now=30.0)
    learned.on_refused(30, now=30.0)
    used_up(learned, 30.0, closed_s=1.0)

    assert learned.rate == pytest.approx(MARGIN * 5.0)


def test_refused_again_at_once_it_slows_down_and_keeps_counting():
    """Two seconds are too few for an estimate: 15 % less, and the count goes on over both refusals."""
    learned = cruising()
    learned.on_begun(9, now=32.0)
    used_up(learned, 32.0, closed_s=1.0)
    slowed = learned.rate
    learned.on_begun(31, now=40.0)
    used_up(learned, 40.0, closed_s=1.0)

    assert slowed == pytest.approx(0.85 * MARGIN * 5.0)
    assert MARGIN * 4.0 < learned.rate < slowed  # towards 40 in 10 s


def test_it_grows_after_clean_time_and_later_each_time_it_is_confirmed():
    """Growth begins after 15 s; when the next refusal finds the same rate, after 30 s."""
    learned = cruising()
    learned.advance(14.0)
    before = learned.rate
    for _ in range(60):
        learned.advance(0.5)
    grown = learned.rate
    learned.on_begun(220, now=74.0)
    used_up(learned, 74.0, closed_s=1.0)
    learned.advance(29.0)
    held = learned.rate

    assert before == pytest.approx(MARGIN * 5.0)
    assert grown > 1.02 * before
    assert held == pytest.approx(learned.rate) and learned.rate < grown


def test_suspected_only_it_is_cautious_for_a_moment():
    """Nothing was proven: half as fast as so far, twice as fast each second, and free after three."""
    learned = Learned(is_suspected=True)
    learned.on_begun(0, now=0.0)
    learned.on_begun(120, now=10.0)
    learned.on_opened(10.0, closed_s=0.3)

    bounds = [learned.bound(now=now) for now in (10.0, 11.0, 12.9, 13.0, 14.0)]

    assert bounds[:2] == [pytest.approx(6.0), pytest.approx(12.0)]
    assert bounds[2] > 24 and bounds[3:] == [None, None]


def test_other_refusals_say_nothing_of_the_rate():
    """The server was busy for a moment: it was no quota that was used up, so what was accepted since is no estimate."""
    learned = cruising()
    learned.on_begun(10, now=40.0)
    learned.on_opened(40.0, closed_s=1.0)

    assert learned.rate == pytest.approx(MARGIN * 5.0)
    assert learned.bound(now=40.0) == learned.rate


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["begun", "refused", "prove", "opened", "advance"]), st.integers(0, 500), st.floats(0, 90)
    ),
    max_size=60,
)


@given(events=EVENTS)
def test_the_rate_is_never_nothing_and_never_absurd(events: list[tuple[str, int, float]]):
    """Whatever happens in whatever order: once there is a rate it is a finite number, at least one a minute."""
    learned, now = Learned(), 0.0
    for kind, count, seconds in events:
        now += seconds
        match kind:
            case "begun":
                learned.on_begun(count, now=now)
            case "refused":
                learned.on_refused(count, now=now)
            case "prove":
                learned.prove(now=now)
            case "opened":
                learned.on_opened(now, closed_s=seconds)
            case "advance":
                learned.advance(min(seconds, 2.0))

        assert learned.rate is None or 1 / 60 <= learned.rate < 1e6
        bound = learned.bound(now=now)
        assert bound is None or 0 < bound < 1e7


@pytest.mark.parametrize(("share", "is_refuted"), [(0.6, True), (1.0, False)])
def test_a_quota_that_only_shrinks_is_none(share: float, is_refuted: bool):
    """share: of the pace that is accepted before the next refusal. A server that refuses at any pace has no quota."""
    learned, now = Learned(), 0.0
    for _ in range(8):
        seconds = 20.0
        learned.on_begun(max(round(seconds * share * (learned.rate or 5.0)), 1), now=now)
        now += seconds
        learned.on_begun(1, now=now)
        learned.on_refused(1, now=now)
        learned.prove(now=now)
        learned.on_opened(now + 1.0, closed_s=1.0)
        learned.is_searching = False
        if learned.is_refuted(now=now + 1.0):
            break

    assert learned.is_refuted(now=now + 1.0) is is_refuted
    assert (learned.rate is None) is is_refuted
