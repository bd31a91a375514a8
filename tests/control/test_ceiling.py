"""The ceiling: held, released slowly, believed when met again, disproved when passed."""

from __future__ import annotations

import math

import pytest

from evalpipe.control.ceiling import Ceiling


def noted(*levels: float, at: float = 0.0) -> Ceiling:
    ceiling = Ceiling()
    for level in levels:
        ceiling.note(level, at=at)
    return ceiling


def test_without_a_collapse_there_is_none():
    """Growth has no other end than the law's own."""
    assert Ceiling().bound(100.0) == math.inf


@pytest.mark.parametrize(("now", "bound"), [(10.0, 92.0), (18.0, 92.0), (28.0, 92.0 * 1.2), (68.0, 92.0 * 2.0)])
def test_growth_stops_short_of_it_and_may_pass_it_later(now: float, bound: float):
    """Eight seconds at 92 %, then 2 % a second more."""
    assert noted(100.0, at=10.0).bound(now) == pytest.approx(bound)


def test_met_again_it_is_believed_for_longer():
    """At the same level within 8 % the hold doubles; elsewhere it halves."""
    assert noted(100.0, 104.0, 100.0).hold_s == 32.0
    assert noted(100.0, 60.0).hold_s == 4.0


def test_holds_are_bounded():
    """Four minutes at most, two seconds at least."""
    assert noted(*[100.0] * 20).hold_s == 240.0
    assert noted(*[100.0, 50.0] * 20).hold_s == 2.0


def test_what_ran_well_above_it_disproves_it():
    """At it or below it says nothing."""
    ceiling = noted(100.0)
    ceiling.disprove(100.0)
    assert ceiling.level == 100.0

    ceiling.disprove(100.5)

    assert ceiling.bound(0.0) == math.inf


def test_a_doubted_one_is_held_briefly():
    """A dip that mended by itself costs two seconds of growth, not eight."""
    ceiling = noted(100.0)
    ceiling.doubt()

    assert ceiling.bound(3.0) > 92.0
