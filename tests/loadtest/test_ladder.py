"""The ladder climbs by doubling, stops where nothing is gained, and reads the server's costs off its rungs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from loadrows import SLO, answer, evenly, whole

from evalpipe.loadtest.ladder import ceiling_of, climb, step_times
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.rows import make_point
from evalpipe.loadtest.search import carry_out


def server(latency_s: Callable[[float], float], tokens: int = 100) -> Callable[[Probe], Point]:
    """N users in a closed loop of given latency: N / latency requests a second."""

    def run(probe: Probe) -> Point:
        e2e_s = latency_s(probe.level)
        end = probe.window.end

        def make(at: float):
            return answer(at, ttft_s=min(0.05, e2e_s / 2), e2e_s=e2e_s, tokens=tokens)

        return make_point(probe, whole(evenly(probe.level / e2e_s, end, make), end + e2e_s), slo=SLO)

    return run


def test_it_stops_at_the_first_rung_that_gains_little():
    """A server with room for 8: 16 users bring nothing more."""
    rungs = carry_out(climb(seed=1), server(lambda n: max(n / 8, 1.0)))

    assert [rung.probe.level for rung in rungs] == [1, 2, 4, 8, 16]
    assert ceiling_of(rungs).rate == pytest.approx(8, rel=0.05)
    assert ceiling_of(rungs).users == 8
    assert ceiling_of(rungs).e2e_s == pytest.approx(1.0, rel=0.05)


def test_rungs_are_long_and_staggered_by_the_latency():
    """A rung is measured for six latencies and begins over one, foreseen from the rung before."""
    probes: list[Probe] = []
    run = server(lambda n: 4.0 + n / 4)

    carry_out(climb(seed=1, most_users=8), lambda probe: probes.append(probe) or run(probe))

    assert [probe.level for probe in probes] == [1, 2, 4, 8]
    assert all(probe.duration_s >= 6 * (4 + probe.level / 4) * 0.9 for probe in probes[1:])
    assert all(probe.stagger_s >= 4 for probe in probes[1:])


def test_a_dead_server_ends_the_climb():
    """Every request fails: no rungs, and no second try."""

    def run(probe: Probe) -> Point:
        failed = evenly(5, probe.window.end, lambda at: answer(at, kind="connect_failed"))
        return make_point(probe, whole(failed, probe.window.end), slo=SLO)

    assert carry_out(climb(seed=1), run) == []


def test_step_times_come_from_the_slope():
    """100 tokens of 5 ms + 0.1 ms a user each: both numbers are read back."""
    rungs = carry_out(climb(seed=1, most_users=64), server(lambda n: 100 * (0.005 + 0.0001 * n)))

    step_s, per_user_s = step_times(rungs)

    assert step_s == pytest.approx(0.005, rel=0.05)
    assert per_user_s == pytest.approx(0.0001, rel=0.25)
