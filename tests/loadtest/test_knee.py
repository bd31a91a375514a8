"""Knees of made-up points: where they are, how sure, and of which kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loadrows import SLO, point

from evalpipe.loadtest.knee import find_knee
from evalpipe.loadtest.verdict import Verdict


def test_the_knee_lies_between_the_last_good_and_the_first_bad():
    """Good at 20, a tenth bad at 22: between them, with an interval that holds the knee."""
    knee = find_knee([point(18), point(20), point(22, bad_share=0.1), point(24, bad_share=0.5)], slo=SLO)

    assert 20 < knee.slo.rate < 22
    assert knee.slo.low < knee.slo.rate < knee.slo.high
    assert not knee.slo.is_bound


def test_one_lucky_probe_does_not_move_it():
    """A pass at 24 among failures from 22 on is pooled with them."""
    probes = [point(20), point(22, bad_share=0.1), point(24), point(23, bad_share=0.2)]

    assert find_knee(probes, slo=SLO).slo.rate < 22


def test_where_nothing_fails_the_highest_rate_is_a_bound():
    """The truth lies above; the estimate says so."""
    knee = find_knee([point(10), point(20)], slo=SLO)

    assert knee.slo.is_bound and knee.stability.is_bound
    assert knee.slo.rate == pytest.approx(20)


def test_invalid_rows_are_never_used():
    """A late client's failure at 12 is no knee."""
    late = replace(point(12, bad_share=0.5), verdict=Verdict.INVALID)

    assert find_knee([point(10), late, point(20)], slo=SLO).slo.is_bound


def test_a_cliff_is_told_from_a_smooth_knee():
    """More load and a third of the tokens is a cliff; more load and as many tokens is not."""
    below = [point(20), point(22)]

    assert find_knee([*below, point(24, bad_share=1.0, tokens=20)], slo=SLO).kind == "cliff"
    assert find_knee([*below, point(24, bad_share=1.0)], slo=SLO).kind == "smooth"


def test_the_stability_knee_is_a_knee_of_its_own():
    """The SLO breaks at 22; the server keeps up until 28."""
    probes = [point(20), point(22, bad_share=0.1), point(26, bad_share=0.2), point(30, bad_share=1.0)]

    knee = find_knee(probes, slo=SLO)

    assert knee.slo.rate < 22
    assert 26 < knee.stability.rate < 30
    assert knee.rate == knee.slo.rate and knee.lower == knee.slo.low


def test_the_same_points_and_seed_give_the_same_interval():
    """The bootstrap's randomness is its seed's."""
    probes = [point(20), point(22, bad_share=0.1)]

    assert find_knee(probes, slo=SLO, seed=1) == find_knee(probes, slo=SLO, seed=1)
