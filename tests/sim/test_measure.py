"""Figures of a run against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evalpipe.control.core import Tick
from evalpipe.sim.measure import failed_within, jain, measure, rates_within, settle_s
from evalpipe.sim.virtual_run import VirtualRun


def run_of(**changes) -> VirtualRun:
    """Four answers in 10 s; what else matters is given."""
    values = {
        "makespan_s": 10.0,
        "job_id": np.arange(4),
        "done_at": np.array([2.0, 4.0, 6.0, 8.0]),
        "rtt_s": np.array([1.0, 2.0, 3.0, 4.0]),
        "ttft_s": np.array([0.1, 0.2, 0.3, 0.4]),
        "work": np.array([1.0, 1.0, 1.0, 2.0]),
        "rejections": 3,
        "attempts": 7,
        "unfinished": 0,
        "peak_in_flight": 2,
        "mean_in_flight": 1.0,
        "preemptions": 0,
        "ticks": [],
        "changes": [],
        "tokens": np.array([100, 200, 300, 400]),
        "failed_at": np.array([1.0, 3.0, 5.0]),
        "running_s": 12.0,
        "dispatched_s": 4.0,
    }
    return VirtualRun(**(values | changes))


def flight(*levels: int) -> list[Tick]:
    """A tick each second with so many in flight."""
    return [
        Tick(float(at), 50.0, level, 0, 0, 0, 0.0, 0.0, 0, None, None, None, "", 1, {})
        for at, level in enumerate(levels)
    ]


def test_a_run_in_numbers():
    """Medians, tail by work, and busy slot time: 12 request-seconds in 4 s on 4 slots are 0.75."""
    heat = measure(run_of(), slots=4)

    assert (heat.p50_s, heat.ttft_p50_s, heat.utilisation) == (2.5, 0.25, 0.75)
    assert heat.p99_per_work_s == pytest.approx(2.97)
    assert (heat.rejections, heat.attempts) == (3, 7)


def test_utilisation_needs_slots():
    """Where slots are not what binds, the figure says nothing and is not there."""
    assert math.isnan(measure(run_of()).utilisation)


def test_settling_is_the_first_moment_that_lasts():
    """At second 3 and 4 it is within 15 % of 40, but leaves; from 6 on it stays: 4 s after the change at 2."""
    ticks = flight(80, 80, 80, 42, 41, 60, 44, 43, 40, 39, 40)

    assert settle_s(ticks, at=2.0, until=20.0, least=40, most=40) == 4.0


def test_a_few_requests_are_allowed_on_a_small_server():
    """Four more than the only slot are near enough; five are not."""
    assert settle_s(flight(5, 5, 5, 5), at=0.0, until=9.0, least=1, most=1) == 0.0
    assert settle_s(flight(6, 6, 6, 6), at=0.0, until=9.0, least=1, most=1) == 9.0


def test_failures_are_counted_from_and_before():
    """Of failures at 1, 3 and 5, one lies in [3, 5)."""
    assert failed_within(run_of(), 3.0, 5.0) == 1


def test_fairness_of_equal_and_unequal_runs():
    """Equal rates are 1, three to one is 0.8, all to one of two is a half; nothing to anybody is no figure."""
    equal, unequal = run_of(), run_of(tokens=np.array([100, 600, 900, 400]))

    assert jain(rates_within([equal, equal], 3.0, 7.0)) == pytest.approx(1.0)
    assert jain(rates_within([equal, unequal], 3.0, 7.0)) == pytest.approx(0.8)
    assert jain(np.array([5.0, 0.0])) == pytest.approx(0.5)
    assert math.isnan(jain(np.array([0.0, 0.0])))
