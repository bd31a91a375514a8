"""Schedules are Poisson, repeatable, and the same however many workers send them; what is not Poisson is seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.errors import ConfigError
from evalpipe.loadtest.arrivals import dispersion, gaps_of, ks_exponential, look_at, schedule, share_of


def test_a_poisson_schedule_is_poisson():
    """Index of dispersion near 1, exponential gaps, no correlation between neighbours."""
    instants = schedule("poisson", rate_per_s=25, duration_s=400, seed=3)

    seen = look_at(instants, rate_per_s=25, end=400)

    assert seen.rate_per_s == pytest.approx(25, rel=0.03)
    assert seen.dispersion is not None and 0.9 <= seen.dispersion <= 1.1
    assert seen.ks_p > 0.01
    assert abs(seen.correlation) < 0.03


def test_the_same_seed_scales_the_same_gaps():
    """At twice the rate each request comes in half the time."""
    slow = schedule("poisson", rate_per_s=10, duration_s=100, seed=1)
    fast = schedule("poisson", rate_per_s=20, duration_s=50, seed=1)

    assert fast == pytest.approx([at / 2 for at in slow])
    assert schedule("poisson", rate_per_s=10, duration_s=100, seed=2) != slow


def test_a_constant_schedule_has_equal_gaps():
    """A request in the middle of each interval: as many as rate times duration."""
    instants = schedule("constant", rate_per_s=4, duration_s=10, seed=0)

    assert len(instants) == 40
    assert gaps_of(instants) == pytest.approx([0.25] * 39)
    assert instants[0] == pytest.approx(0.125)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_workers_together_send_the_whole_schedule(workers: int):
    """Dealt by index, nothing is lost, nothing sent twice, and the sum is as Poisson as one list."""
    instants = schedule("poisson", rate_per_s=30, duration_s=300, seed=5)

    shares = [share_of(instants, worker=worker, workers=workers) for worker in range(workers)]
    seen = look_at(sorted(at for share in shares for at in share), rate_per_s=30, end=300)

    assert sorted(at for share in shares for at in share) == instants
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert seen.dispersion is not None and 0.9 <= seen.dispersion <= 1.1
    assert seen.ks_p > 0.01


def test_gaps_drawn_once_a_worker_are_seen():
    """Ten workers that draw from one seed on a shared offset (a known tool's way) use each gap ten times in a row."""
    rng = random.Random(1)
    at, instants = 0.0, []
    for _ in range(1_000):
        gap = rng.expovariate(25)
        for _ in range(10):
            at += gap
            instants.append(at)

    seen = look_at(instants, rate_per_s=25)

    assert seen.dispersion is not None and seen.dispersion > 5
    assert seen.correlation > 0.8


def test_bunched_gaps_fail_the_ks_test():
    """A sender that wakes each 100 ms and sends all that is due has no exponential gaps."""
    instants = schedule("poisson", rate_per_s=25, duration_s=100, seed=1)
    bunched = [int(at * 10) / 10 + 0.1 for at in instants]

    assert ks_exponential(gaps_of(instants), mean=1 / 25) > 0.01
    assert ks_exponential(gaps_of(bunched), mean=1 / 25) < 1e-6


def test_ks_p_values_are_uniform():
    """Under the null hypothesis a tenth of the p-values lies below 0.1."""
    low = 0
    for seed in range(400):
        rng = random.Random(seed)
        low += ks_exponential([rng.expovariate(1.0) for _ in range(60)], mean=1.0) < 0.1

    assert 20 <= low <= 60


def test_dispersion_needs_ten_bins():
    """Counts of a few seconds say nothing about their variance; a steady beat has none."""
    beat = schedule("constant", rate_per_s=5, duration_s=20, seed=0)

    assert dispersion(beat, start=0, end=9) is None
    assert dispersion(beat, start=0, end=20) == 0
    assert dispersion([], start=0, end=20) is None


@given(st.floats(0.1, 50), st.floats(0.1, 50), st.integers(0, 100))
def test_instants_rise_and_stay_inside(rate: float, duration: float, seed: int):
    """Whatever the rate: ascending, from 0 on, before the end."""
    for kind in ("poisson", "constant"):
        instants = schedule(kind, rate_per_s=rate, duration_s=duration, seed=seed)

        assert instants == sorted(instants)
        assert all(0 <= at <= duration for at in instants)


@pytest.mark.parametrize(("kind", "rate", "duration"), [("poisson", 0, 1), ("poisson", 1, -1), ("gamma", 1, 1)])
def test_impossible_schedules_are_refused(kind: str, rate: float, duration: float):
    """No rate, no time or an unknown process is the user's mistake."""
    with pytest.raises(ConfigError, match="got"):
        schedule(kind, rate_per_s=rate, duration_s=duration, seed=0)  # type: ignore[arg-type]


def test_a_worker_must_be_one_of_the_workers():
    """Worker numbers count from 0."""
    with pytest.raises(ConfigError, match="got 2 of 2"):
        share_of([1.0], worker=2, workers=2)
