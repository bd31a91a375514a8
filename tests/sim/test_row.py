"""What a row says of what was played, against figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evalpipe.sim.cliff import CliffParams
from evalpipe.sim.course import Course
from evalpipe.sim.oracle import play_fixed
from evalpipe.sim.profiles import Profile, Work
from evalpipe.sim.quota import QuotaParams
from evalpipe.sim.row import Row, Yardstick, heat_of, row_of
from evalpipe.sim.scenario import Guest, Scenario
from evalpipe.sim.trouble import Outage, Sizes

SERVER = CliffParams(base_s=1.0, safe=10, flat_until=12, reject_above=1_000)


def scenario_of(jobs: int, *, quota: QuotaParams | None = None, troubles: tuple = (), **options) -> Scenario:
    """Equal jobs of a second on a cliff of ten."""
    profile = Profile("even", SERVER, Work(sigma=0.0), quota=quota or QuotaParams())
    course = Course("even", profile, jobs, prompt_median=50, prompt_sigma=0, troubles=troubles)
    return Scenario(course, **options)


def played(scenario: Scenario, limit: int, yardstick: Yardstick | None = None) -> Row:
    run = play_fixed(scenario.plain(), limit, seed=0)
    return row_of("even", "sharing", 0, "fixed", scenario, run, yardstick or Yardstick())


def test_ratios_are_over_the_best_fixed_limit():
    """Five in flight take twice as long as ten, with the same latencies."""
    scenario = scenario_of(100)
    best = Yardstick(10, heat_of(scenario, play_fixed(scenario, 10, seed=0)))

    row = played(scenario, 5, best)

    assert (row.limit, row.over_best) == (10, pytest.approx(2.0))
    assert (row.p50_over_best, row.ttft_over_best) == (pytest.approx(1.0), pytest.approx(1.0))


def test_without_a_best_fixed_limit_there_are_no_ratios():
    """NaN, not a number that looks like one."""
    row = played(scenario_of(20), 5)

    assert row.limit == 0
    assert all(math.isnan(getattr(row, figure)) for figure in ("over_best", "ttft_over_best", "over_preemptions"))
    assert all(
        math.isnan(getattr(row, figure)) for figure in ("quota_share", "settle_s", "jain", "guest_ttft_over_alone")
    )


def test_the_share_of_a_quota_leaves_out_the_first_burst():
    """120 a minute with 5 s of burst, two in flight at a second each: 2 a second is all of it, one is half."""
    quota = QuotaParams(rpm=120, burst_s=5.0)

    full, half = (played(scenario_of(200, quota=quota), limit) for limit in (2, 1))

    assert full.quota_share == pytest.approx((200 - 10) / (2.0 * (99 - 5)))
    assert half.quota_share == pytest.approx((200 - 5) / (2.0 * (199 - 5)))


def test_a_window_quota_is_counted_whole():
    """60 a minute in a fixed window, one in flight: 60 go at once at 1 a second, and all of it is used."""
    row = played(scenario_of(60, quota=QuotaParams(rpm=60, window="fixed")), 1)

    assert row.quota_share == pytest.approx(60 / 59)


def test_settling_is_the_longest_after_any_change():
    """A fixed limit of ten is right before and after, and far above five in between: never settled there, 40 s."""
    scenario = scenario_of(900, troubles=(Sizes(((20.0, 0.1), (60.0, 1.0))),))

    assert played(scenario, 10).settle_s == pytest.approx(40.0)
    assert math.isnan(played(scenario_of(100), 10).settle_s)


def test_errors_of_an_outage_are_counted_beyond_what_was_out():
    """Ten were out when it came and are lost; the breaker's eighth in a row and its probes come on top."""
    row = played(scenario_of(300, troubles=(Outage(5.0, 10.0, is_reachable=False),)), 10)

    assert 0 <= row.outage_errors_over_limit == row.failures - 10
    assert row.outage_errors_over_limit <= 20


def test_equal_runs_are_fair():
    """Two of ours with the same fixed limit get the same."""
    row = played(scenario_of(200, runs=2), 5)

    assert row.jain == pytest.approx(1.0, abs=0.001)


def test_a_neighbour_is_compared_with_itself_alone():
    """Five of it and seven of ours share a processor of ten: 1.2 times as slow; with five of ours nothing is lost."""
    scenario = scenario_of(300, guests=(Guest(5, 1_000),))
    alone = scenario.play_guest_alone(seed=0, horizon_s=20.0)
    roomy = replace(scenario, course=replace(scenario.course, jobs=100))

    crowded, spared = (played(one, limit, Yardstick(guest_alone=alone)) for one, limit in ((scenario, 7), (roomy, 5)))

    assert crowded.guest_ttft_over_alone == pytest.approx(1.2, rel=0.05)
    assert spared.guest_ttft_over_alone == pytest.approx(1.0)


def test_reasons_are_counted():
    """A fixed limit never moves, and has none."""
    assert played(scenario_of(20), 5).reasons == ""
