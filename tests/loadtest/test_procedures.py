"""Rows at given levels, and the sweep's knee."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loadrows import SLO, point

from evalpipe.errors import ConfigError
from evalpipe.loadtest.capacity import Plan
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.procedures import closed_rows, open_rows, sweep
from evalpipe.loadtest.search import carry_out
from evalpipe.loadtest.verdict import Verdict


def run(probe: Probe) -> Point:
    """A server that carries 17 requests/s."""
    return replace(point(probe.level, bad_share=0.0 if probe.level <= 17 else 1.0), probe=probe)


def test_open_rows_share_their_gaps():
    """One row a rate, all from one seed: the load differs, the luck does not."""
    rows = carry_out(open_rows([5.0, 10.0], warmup_s=1.0, duration_s=20.0, seed=4), run)

    assert [(row.probe.level, row.probe.seed) for row in rows] == [(5.0, 4), (10.0, 4)]


def test_closed_rows_are_those_asked_for():
    """One row for each number of users."""
    rows = carry_out(closed_rows([4, 8], warmup_s=1.0, duration_s=20.0, seed=4), run)

    assert [(row.probe.loop, row.probe.level) for row in rows] == [("closed", 4), ("closed", 8)]


def test_a_sweep_of_given_rates_brackets_the_knee():
    """Between the last that held and the first that did not."""
    found = carry_out(sweep(Plan(SLO), [12.0, 16.0, 18.0]), run)

    assert 16 < found.knee.rate < 18
    assert len(found.points) == 3


def test_a_sweep_of_a_late_client_says_so():
    """Not one usable row: no knee is made up from them."""

    def late(probe: Probe) -> Point:
        return replace(run(probe), verdict=Verdict.INVALID, notes=("sent late: P99 80 ms",))

    with pytest.raises(ConfigError, match=r"client is not fit .*sent late"):
        carry_out(sweep(Plan(SLO), [12.0, 16.0]), late)
