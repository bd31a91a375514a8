"""The curve of work against in flight: found from clean points, from noisy ones, and absent where there is none."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.control.curve import Point, fit

LEVELS = (4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128)


def points(
    own_s: float, each_s: float, rate: float, *, levels=LEVELS, noise: float = 0.0, seed: int = 0
) -> list[Point]:
    """Points of a server: max(own + each * n, n / rate), each off by a normal share of `noise`."""
    rng = random.Random(seed)
    exact = [(n, max(own_s + each_s * n, n / rate)) for n in levels]
    return [Point(n, seconds * math.exp(noise * rng.gauss(0, 1)), max(noise, 0.01)) for n, seconds in exact]


def test_a_batching_server_has_its_knee_where_the_slots_end():
    """10 ms and 0.05 ms a sequence: 50 slots do 50 / 12.5 ms = 4,000 a second, and no more."""
    curve = fit(points(0.010, 0.00005, 4000.0))

    assert curve.knee == pytest.approx(50.0, rel=0.02)
    assert curve.elasticity(50.0) == pytest.approx(0.8, rel=0.02)
    assert not curve.is_saturated


def test_a_shared_processor_has_its_knee_where_it_is_full():
    """Equally fast up to 30, then in proportion."""
    assert fit(points(0.4, 0.0, 75.0)).knee == pytest.approx(30.0, rel=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_averaged_out(seed: int):
    """Points off by 3 %: within a fifth of where it is."""
    knee = fit(points(0.010, 0.00005, 4000.0, noise=0.03, seed=seed)).knee

    assert knee == pytest.approx(50.0, rel=0.2)


def test_a_knee_must_be_worth_it():
    """Points off by a fifth in no order: a line will do."""
    off = [Point(n, 0.02 * (1.2 if i % 2 else 1.0), 0.1) for i, n in enumerate(LEVELS)]

    assert fit(off).knee is None


def test_without_saturation_there_is_no_knee():
    """A line that rises slowly stays a line, and says where its elasticity would fall to a tenth."""
    curve = fit(points(0.008, 0.0001, math.inf))

    assert curve.knee is None
    assert curve.at_elasticity(0.1) == pytest.approx(720.0, rel=0.02)


def test_a_flat_server_never_falls_to_any_elasticity():
    """Twice in flight, twice the work: up to infinity."""
    assert fit(points(0.4, 0.0, math.inf)).at_elasticity(0.1) == math.inf


def test_where_all_levels_queue_the_lowest_is_the_knee():
    """One slot, never fewer than four in flight."""
    curve = fit(points(0.5, 0.0, 2.0))

    assert curve.elasticity(16.0) == pytest.approx(0.0, abs=0.01)
    assert curve.knee in (None, 4)


def test_one_point_is_a_flat_line():
    """Nothing to compare with: no slope, no knee."""
    curve = fit([Point(16, 0.02, 0.1)])

    assert (curve.own_s, curve.each_s, curve.knee) == (pytest.approx(0.02), 0.0, None)


def test_old_points_weigh_less():
    """Two points that say the same at 64 and 96 outweigh one that contradicts with a large error."""
    base = points(0.010, 0.00005, 4000.0)
    off = [Point(p.in_flight, p.per_work_s * 0.7, 0.5) if p.in_flight == 80 else p for p in base]

    assert fit(off).knee == pytest.approx(50.0, rel=0.05)


POINT = st.builds(Point, st.floats(1.0, 1e3), st.floats(1e-6, 1e4), st.floats(0.0, 3.0))


@given(st.lists(POINT, min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_any_points_give_a_curve(found):
    """Weights are at least 0, at least one of them above it; the knee lies among the points."""
    ordered = sorted(found, key=lambda point: point.in_flight)

    curve = fit(ordered)

    assert min(curve.own_s, curve.each_s) >= 0.0
    assert curve.own_s + curve.each_s > 0.0
    assert 0.0 <= curve.elasticity(10.0) <= 1.0
    assert curve.knee is None or ordered[0].in_flight <= curve.knee <= ordered[-1].in_flight
