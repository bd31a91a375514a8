"""Quantiles against numbers worked by hand, with values that had not ended and values that hang together."""

from __future__ import annotations

import math
import random

import pytest

from evalpipe.loadtest.quantiles import Value, design_effect, spread


def values(*seconds: float) -> list[Value]:
    return [Value(float(i), each) for i, each in enumerate(seconds)]


def test_quantiles_of_complete_values_are_order_statistics():
    """Of 1..100 the median is 50 and the P99 is 99."""
    found = spread(values(*range(1, 101)))

    assert (found.count, found.open_count) == (100, 0)
    assert [found.seconds(p) for p in (50.0, 90.0, 99.0)] == [50, 90, 99]
    assert found.mean_s == 50.5
    assert found.deviation_s == pytest.approx(29.01, abs=0.01)


def test_requests_that_had_not_ended_count_as_longer():
    """Nine answers of 1 s and one of age 5 s: the P95 is at least 5 s, not 1 s as without it."""
    found = spread([*values(*[1.0] * 9), Value(9.0, 5.0, is_open=True)])

    assert (found.count, found.open_count) == (10, 1)
    assert found.by_percentile[95.0].seconds == 5.0
    assert found.by_percentile[95.0].is_open
    assert found.by_percentile[95.0].high is None
    assert not found.by_percentile[50.0].is_open


def test_young_open_requests_share_their_weight():
    """One of age 1 s, then answers of 2 and 3 s: each of these stands for half of the rest (Kaplan and Meier)."""
    found = spread([Value(0.0, 1.0, is_open=True), Value(1.0, 2.0), Value(2.0, 3.0)])

    assert found.seconds(50.0) == 2.0
    assert found.seconds(90.0) == 3.0


def test_intervals_cover_the_truth():
    """Nineteen in twenty intervals of the P90 of exponential values hold it."""
    truth, hits = -math.log(0.1), 0
    for seed in range(200):
        rng = random.Random(seed)
        found = spread([Value(i * 0.1, rng.expovariate(1.0)) for i in range(400)]).by_percentile[90.0]
        hits += found.low <= truth <= (found.high or math.inf)

    assert 0.90 <= hits / 200 <= 0.99


def test_a_quantile_beyond_the_values_has_no_upper_bound():
    """P99.9 of a hundred values may be anything above them."""
    found = spread(values(*range(1, 101))).by_percentile[99.9]

    assert found.seconds == 100
    assert found.high is None


def test_values_that_hang_together_widen_the_interval():
    """The same values, slow ones side by side: fewer independent ones, a wider interval."""
    slow = [i % 5 == 0 for i in range(400)]
    mixed = spread([Value(i * 0.25, 2.0 + i / 1e6 if late else 1.0 + i / 1e6) for i, late in enumerate(slow)])
    together = spread(
        [Value(i * 0.25, 2.0 + i / 1e6 if late else 1.0 + i / 1e6) for i, late in enumerate(sorted(slow))]
    )

    def ranks(found: float, low: float) -> float:
        return found - low

    wide, narrow = together.by_percentile[50.0], mixed.by_percentile[50.0]
    assert ranks(wide.seconds, wide.low) > ranks(narrow.seconds, narrow.low)


def test_design_effect_is_one_for_independent_flags_and_large_for_bunches():
    """Bunches of twenty are worth about one twentieth."""
    rng = random.Random(2)
    loose = [(i * 0.25, rng.random() < 0.1) for i in range(2000)]
    bunches = [(i * 0.25, (i // 20) % 10 == 0) for i in range(2000)]

    assert design_effect(loose, 5.0) < 1.6
    assert 15 < design_effect(bunches, 5.0) < 25
    assert design_effect(loose[:100], 5.0) == 1.0
    assert design_effect([], 5.0) == 1.0


def test_no_values_have_no_quantiles():
    """Nothing came: nan, not zero."""
    found = spread([])

    assert found.count == 0
    assert math.isnan(found.seconds(50.0))
