"""The search for the best fixed limit, on functions whose least value is known."""

from __future__ import annotations

import math

import pytest

from evalpipe.sim.search import find_best


def valley(floor: int):
    """Seconds that grow by the ratio to the floor, cut off as a run is."""

    def seconds_of(limit: int, within_s: float) -> float:
        seconds = 100.0 * max(limit / floor, floor / limit)
        return seconds if seconds <= within_s else math.inf

    return seconds_of


@pytest.mark.parametrize("near", [None, 2, 45, 700])
@pytest.mark.parametrize("floor", [2, 7, 45, 100, 333, 699])
def test_the_floor_of_a_valley_is_found(floor: int, near: int | None):
    """Wherever the search begins."""
    found = find_best(valley(floor), max_limit=700, near=near)

    assert (found.limit, found.seconds) == (floor, 100.0)


def test_a_search_that_begins_nearby_tries_less():
    """Outwards from a good guess it needs at most two thirds of the runs."""
    whole, guessed = find_best(valley(64), max_limit=700), find_best(valley(64), max_limit=700, near=60, fineness=0.02)

    assert abs(guessed.limit - 64) <= 2
    assert guessed.tried <= 2 * whole.tried / 3


def test_no_limit_above_the_largest_is_tried():
    """The best of what is allowed is at its edge."""
    tried: list[int] = []

    def seconds_of(limit: int, within_s: float) -> float:
        tried.append(limit)
        return 1_000.0 / limit

    assert find_best(seconds_of, max_limit=50).limit == 50
    assert max(tried) == 50


def test_of_equals_the_smaller_wins():
    """A floor as flat as a table from 64 on."""

    def seconds_of(limit: int, within_s: float) -> float:
        seconds = 100.0 * max(64 / limit, 1.0)
        return seconds if seconds <= within_s else math.inf

    assert find_best(seconds_of, max_limit=700).limit == 64
    assert find_best(seconds_of, max_limit=700, near=100, fineness=0.02).limit <= 66


def test_a_bump_does_not_stop_the_search():
    """One grid point that is worse than its neighbours lies between the start and the floor."""

    def seconds_of(limit: int, within_s: float) -> float:
        return 100.0 * max(limit / 200, 200 / limit) + 200.0 * (limit == 91)

    assert find_best(seconds_of, max_limit=700, near=64).limit == 200
