"""Rates that headers tell: buckets and windows told apart, and what is made up is found out."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evalpipe.control.quota import Meter
from evalpipe.control.told import LONGEST_S, MARGIN, Hint


def heard(*tellings: tuple[float, float, float, float]) -> Hint:
    """Return a hint that was told (now, limit, left, reset_s), in order."""
    hint = Hint()
    for now, limit, left, reset_s in tellings:
        hint.hear(Meter(limit, left, reset_s), now=now)
    return hint


def test_a_bucket_is_refilled_by_what_is_missing_over_its_reset():
    """60 of 60 missing and whole again in 12 s, told twice so: 5 a second."""
    hint = heard((0.0, 60, 0, 12.0), (2.0, 60, 0, 12.0))

    assert (hint.is_window, hint.rate(cost=1.0, now=2.5)) == (False, pytest.approx(MARGIN * 5.0))


def test_a_window_spreads_what_is_left_until_it_begins_anew():
    """90 left for 30 s: 3 a second; after its end the whole limit over the period that was seen."""
    hint = heard((0.0, 300, 200, 50.0), (20.0, 300, 90, 30.0))

    rates = [hint.rate(cost=1.0, now=now) for now in (20.0, 51.0)]

    assert hint.is_window
    assert rates == [pytest.approx(MARGIN * 3.0), pytest.approx(MARGIN * 300 / 50)]


def test_a_bucket_that_is_half_full_bounds_nothing():
    """There is enough: no pace."""
    assert heard((0.0, 60, 40, 4.0), (2.0, 60, 40, 4.0)).rate(cost=1.0, now=2.0) is None


@pytest.mark.parametrize("meter", [Meter(60, 0, None), Meter(None, 0, 5.0), Meter(60, None, 5.0), Meter(0, 0, 5.0)])
def test_a_telling_that_leaves_out_a_number_says_nothing(meter: Meter):
    """Nothing is guessed from half of it."""
    hint = Hint()
    hint.hear(meter, now=0.0)

    assert hint.rate(cost=1.0, now=1.0) is None


def test_a_lie_is_tried_faster_and_faster_and_then_ignored():
    """ "None left for an hour", while all is accepted: under a minute later nobody listens."""
    hint, now = heard((0.0, 100, 0, 3600.0)), 0.0
    rates = []
    while not hint.is_false:
        now += 1.0
        hint.hear(Meter(100, 0, 3600.0), now=now)
        rates.append(hint.rate(cost=1.0, now=now))
        hint.advance(1.0)

    assert rates[0] >= 1 / LONGEST_S
    assert rates == sorted(rates)
    assert now < 60 and hint.rate(cost=1.0, now=now) is None


def test_what_a_refusal_proved_is_believed():
    """The server refused when it said that nothing is left: the told rate holds, however long."""
    hint = heard((0.0, 60, 0, 12.0), (2.0, 60, 0, 12.0))
    hint.advance(8.0)
    tried = hint.rate(cost=1.0, now=2.0)
    hint.prove()
    hint.advance(3600.0)

    assert tried == pytest.approx(2 * MARGIN * 5.0)
    assert hint.rate(cost=1.0, now=2.0) == pytest.approx(MARGIN * 5.0)


NUMBER = st.one_of(st.none(), st.floats(0, 1e9))


@given(tellings=st.lists(st.tuples(st.floats(0, 100), NUMBER, NUMBER, NUMBER, st.booleans()), max_size=30))
def test_whatever_is_told_the_rate_is_above_nothing(tellings):
    """No header makes the rate 0, negative or no number: the slowest is one request in twenty seconds."""
    hint, now = Hint(), 0.0
    for seconds, limit, left, reset_s, is_refused in tellings:
        now += seconds
        hint.hear(Meter(limit, left, reset_s), now=now)
        if is_refused:
            hint.prove()
        rate = hint.rate(cost=1.0, now=now)

        assert rate is None or rate >= 1 / LONGEST_S
