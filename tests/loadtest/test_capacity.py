"""The procedure against a server of known knee that is made up from numbers: what it asks, what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from loadrows import SLO, answer, evenly, point, whole

from evalpipe.errors import ConfigError
from evalpipe.loadtest.capacity import Capacity, Plan, capacity
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.rows import make_point
from evalpipe.loadtest.search import carry_out
from evalpipe.loadtest.verdict import Verdict

PLAN = Plan(SLO, seed=1)


@dataclass
class Server:
    """Serves up to `knee` requests/s well, and beyond it breaks the SLO for all; 20 answers a second in closed loop.

    lucky: seeds at which anything passes. recovers_s: after a flood.
    """

    knee: float
    lucky: tuple[int, ...] = ()
    recovers_s: float = 10.0
    tokens_over: int = 101
    asked: list[Probe] = field(default_factory=list)

    def __call__(self, probe: Probe) -> Point:
        self.asked.append(probe)
        if probe.loop == "closed":
            e2e_s = max(probe.level / 20, 1.0)
            requests = evenly(probe.level / e2e_s, probe.window.end, lambda at: answer(at, e2e_s=e2e_s))
            return make_point(probe, whole(requests, probe.window.end + e2e_s), slo=SLO)
        if probe.spike is not None:
            return self._flooded(probe)
        is_good = probe.level <= self.knee or probe.seed in self.lucky
        row = point(probe.level, bad_share=0.0 if is_good else 1.0, tokens=101 if is_good else self.tokens_over)
        return replace(row, probe=probe)

    def _flooded(self, probe: Probe) -> Point:
        end = probe.window.start + self.recovers_s
        requests = evenly(
            probe.level, probe.window.end, lambda at: answer(at, ttft_s=1.0 if at < end else 0.05, e2e_s=1.05)
        )
        return make_point(probe, whole(requests, probe.window.end + 2), slo=SLO)


def found(server: Callable[[Probe], Point], plan: Plan = PLAN) -> Capacity:
    return carry_out(capacity(plan), server)


@pytest.mark.parametrize("knee", [12.3, 17.0, 19.5, 23.0])
def test_the_knee_is_found_wherever_it_lies(knee: float):
    """Below the ceiling of the closed loop, near it and above it: within 3 %."""
    result = found(Server(knee))

    assert result.knee.rate == pytest.approx(knee, rel=0.03)
    assert result.is_confirmed


@pytest.mark.parametrize("knee", [2.0, 0.5])
def test_a_knee_far_below_the_ceiling_is_found_too(knee: float):
    """A tight SLO: the bracket goes down until something passes."""
    assert found(Server(knee)).knee.rate == pytest.approx(knee, rel=0.1)


def test_the_promise_is_a_share_of_the_lower_bound_with_a_cap():
    """0.8 of it where the knee is smooth; in flight by Little's law with a fifth of headroom."""
    result = found(Server(17.0))

    assert result.factor == 0.8
    assert result.rate == pytest.approx(0.8 * result.knee.lower)
    assert result.in_flight == pytest.approx(1.2 * result.rate * 1.05, abs=1)
    assert result.tokens_per_s == pytest.approx(result.rate * 101, rel=0.02)


def test_a_cliff_gets_the_smaller_factor():
    """A server that delivers a fifth of its tokens beyond the knee."""
    result = found(Server(17.0, tokens_over=20))

    assert (result.knee.kind, result.factor) == ("cliff", 0.7)


@pytest.mark.parametrize(
    ("recovers_s", "is_slow", "factor"), [(10.0, False, 0.8), (70.0, True, 0.7), (500.0, True, 0.7)]
)
def test_a_server_that_stays_flooded_has_hysteresis(recovers_s: float, is_slow: bool, factor: float):
    """More than a minute after 20 s of 1.3 times the knee: the cap is no longer optional, and the factor falls."""
    result = found(Server(17.0, recovers_s=recovers_s))

    assert (result.has_hysteresis, result.factor) == (is_slow, factor)
    assert result.recovery_s == (None if recovers_s > 90 else recovers_s)


def test_confirmation_takes_a_lucky_pass_back():
    """A probe above the knee that passed by luck: three fresh seeds fail there, and the rate steps down."""
    honest = found(Server(17.0))
    lucky = Server(17.0, lucky=(1020, 1021, 1022, 1023, 1024, 1025))

    result = found(lucky)

    assert result.is_confirmed
    assert result.knee.lower <= 17.0
    assert sum(1040 <= probe.seed < 1100 for probe in lucky.asked) > 3
    assert honest.knee.rate == pytest.approx(17.0, rel=0.03)


def test_every_open_probe_draws_its_own_arrivals():
    """Seeds are not used twice, and those of another plan are others."""
    server, other = Server(17.0), Server(17.0)
    found(server)
    found(other, replace(PLAN, seed=2))

    seeds = [probe.seed for probe in server.asked if probe.loop == "open"]
    assert len(set(seeds)) == len(seeds)
    assert not set(seeds) & {probe.seed for probe in other.asked if probe.loop == "open"}


def test_quick_is_ladder_and_bracket_and_promises_nothing():
    """Five minutes: no confirmation, no flood."""
    server = Server(18.0)
    result = found(server, replace(PLAN, quick=True))

    assert not result.is_confirmed
    assert result.recovery_s is None and not result.has_hysteresis
    assert result.factor == 0.75
    assert result.knee.rate == pytest.approx(18.0, rel=0.1)
    assert all(probe.spike is None and probe.duration_s <= 45 for probe in server.asked if probe.loop == "open")


def test_rows_of_a_late_client_do_not_steer_the_search():
    """An invalid failure in the bracket is passed over."""
    server = Server(17.0)

    def run(probe: Probe) -> Point:
        row = server(probe)
        is_first = probe.loop == "open" and probe.seed == 1000
        return replace(row, verdict=Verdict.INVALID, blocks=()) if is_first else row

    assert found(run).knee.rate == pytest.approx(17.0, rel=0.03)


def test_a_late_client_confirms_nothing():
    """Rows of the confirmation that passed while the client was late are not a promise; they are kept."""
    server = Server(17.0)

    def run(probe: Probe) -> Point:
        row = server(probe)
        is_confirming = probe.loop == "open" and probe.spike is None and 1040 <= probe.seed < 1099
        return replace(row, verdict=Verdict.INVALID) if is_confirming else row

    result = found(run)

    assert not result.is_confirmed
    assert result.knee.rate == pytest.approx(17.0, rel=0.03)
    assert any(not point.is_usable for point in result.points)


def test_a_server_that_never_answers_has_no_capacity():
    """One line, instead of a knee at zero."""

    def run(probe: Probe) -> Point:
        failed = evenly(5, probe.window.end, lambda at: answer(at, kind="connect_failed"))
        return make_point(probe, whole(failed, probe.window.end), slo=SLO)

    with pytest.raises(ConfigError, match="no answer"):
        found(run)


def test_json_says_what_to_promise_and_what_it_rests_on():
    """The keys that `evalpipe run --capacity` reads, and every row."""
    body = found(Server(17.0)).to_dict()

    assert body["recommended"].keys() == {"request_rate", "max_in_flight", "output_tokens_per_s", "factor"}
    assert body["slo_knee"]["low"] < body["slo_knee"]["rate"] < body["slo_knee"]["high"]
    assert {row["loop"] for row in body["points"]} == {"closed", "open"}
