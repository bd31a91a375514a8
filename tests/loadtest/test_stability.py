"""A server that keeps up is told from one that falls behind, and neither by one sign alone."""

from __future__ import annotations

import random

import pytest
from loadrows import answer, waiting

from evalpipe.loadtest.arrivals import schedule
from evalpipe.loadtest.records import Request, Window
from evalpipe.loadtest.stability import stability

WINDOW = Window(0.0, 60.0)


def served(rate: float, service_per_s: float, *, seed: int = 1) -> list[Request]:
    """Poisson arrivals at one server in turn, with exponential service times."""
    rng = random.Random(f"served/{seed}")
    free_at, requests = 0.0, []
    for at in schedule("poisson", rate_per_s=rate, duration_s=60, seed=seed):
        begin = max(at, free_at)
        free_at = begin + rng.expovariate(service_per_s)
        if free_at > 60:
            requests.append(waiting(at, first_at=begin if begin < 60 else None))
        else:
            requests.append(answer(at, ttft_s=begin - at, e2e_s=free_at - at))
    return requests


@pytest.mark.parametrize("seed", range(8))
def test_a_queue_at_seven_tenths_is_stable(seed: int):
    """Chance alone makes no two signs agree."""
    assert stability(served(20, 28, seed=seed), WINDOW, now=60.0).is_stable


@pytest.mark.parametrize("seed", range(8))
def test_a_queue_at_one_and_a_half_is_not(seed: int):
    """Half as much again as it can serve: it grows, delivers too little and gets slower."""
    seen = stability(served(30, 20, seed=seed), WINDOW, now=60.0)

    assert not seen.is_stable
    assert seen.is_behind and seen.is_growing
    assert seen.growth_per_s == pytest.approx(10, rel=0.4)
    assert seen.delivered_share < 0.8


def test_few_requests_prove_nothing():
    """Below a hundred requests no row is called unstable."""
    assert stability(served(1.5, 0.5), WINDOW, now=60.0).is_stable


def test_a_steady_trend_of_latency_alone_is_one_sign():
    """TTFT that rises from quarter to quarter while all is delivered: a cache that cools, not a queue."""
    requests = [answer(at, ttft_s=0.05 + at / 1000) for at in (i / 10 for i in range(600))]

    seen = stability(requests, WINDOW, now=62.0)

    assert seen.is_slowing and not seen.is_behind and not seen.is_growing
    assert seen.is_stable
