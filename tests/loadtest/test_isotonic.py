"""The isotonic fit against its definition, and the crossing between its steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.loadtest.isotonic import crossing, pool_adjacent

shares = st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10)), min_size=1, max_size=12)


def test_values_that_fall_are_pooled_by_weight():
    """0.4 with weight 1 before 0.1 with weight 2: both become 0.2."""
    assert pool_adjacent([0.0, 0.4, 0.1, 0.9], [1, 1, 2, 1]) == pytest.approx([0.0, 0.2, 0.2, 0.9])


@given(shares)
def test_the_fit_never_falls_and_keeps_the_mean(pairs: list[tuple[float, float]]):
    """Least squares under order: non-decreasing, same weighted mean, and a second fit changes nothing."""
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]

    fitted = pool_adjacent(values, weights)

    assert fitted == sorted(fitted)
    assert math.fsum(f * w for f, w in zip(fitted, weights, strict=True)) == pytest.approx(
        math.fsum(v * w for v, w in pairs)
    )
    assert pool_adjacent(fitted, weights) == pytest.approx(fitted)


def test_the_crossing_lies_between_the_points_by_the_logarithm():
    """From 0.1 % at 20 to 10 % at 22, one per cent is half way."""
    assert crossing([18, 20, 22], [0.001, 0.001, 0.1], level=0.01, floor=1e-4) == pytest.approx(21)


def test_a_crossing_outside_the_points():
    """None where nothing reaches the level; the lowest rate where all do."""
    assert crossing([10, 20], [0.0, 0.001], level=0.01, floor=1e-4) is None
    assert crossing([10, 20], [0.5, 0.9], level=0.01, floor=1e-4) == 10
    assert crossing([], [], level=0.01, floor=1e-4) is None
