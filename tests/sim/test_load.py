"""Open and closed loop in virtual time: arrivals are kept whatever the server does, users wait for their answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalpipe.loadtest.arrivals import schedule
from evalpipe.loadtest.probe import Probe
from evalpipe.loadtest.records import OK, UNFINISHED
from evalpipe.sim.bench import VirtualBench
from evalpipe.sim.load import Workload, closed_loop, open_loop
from evalpipe.sim.profiles import profile

SMALL = profile("vllm", median=50, sigma=0.0, slots=8)
WORK = Workload(SMALL, prompt_tokens=100, seed=1)


def test_open_loop_sends_on_time_whatever_the_server_does():
    """Ten times what it can serve: every request leaves at its instant; nothing is dropped or put off."""
    instants = schedule("poisson", rate_per_s=150, duration_s=10, seed=1)

    run = open_loop(WORK, instants, duration_s=10, drain_s=1.0)

    assert [request.scheduled_at for request in run.requests] == instants
    assert all(request.lateness_s == 0 for request in run.requests)
    assert sum(request.kind == UNFINISHED for request in run.requests) > 500


def test_open_loop_waits_for_what_is_in_flight():
    """At a rate that it serves, all answers come, some of them after the last arrival."""
    run = open_loop(WORK, schedule("constant", rate_per_s=5, duration_s=10, seed=1), duration_s=10)

    assert {request.kind for request in run.requests} == {OK}
    assert run.ended_at > run.sent_until == 10


def test_the_bound_on_requests_in_flight_ends_it():
    """A flood is ended, never throttled."""
    instants = schedule("poisson", rate_per_s=200, duration_s=60, seed=1)

    run = open_loop(WORK, instants, duration_s=60, most_in_flight=500)

    assert run.is_flooded
    assert run.sent_until < 10
    assert all(request.lateness_s == 0 for request in run.requests)


def test_stop_ends_the_sending():
    """Asked each five seconds with what there is so far."""
    asked: list[float] = []
    instants = schedule("constant", rate_per_s=5, duration_s=60, seed=1)

    def stop(requests: object, now: float) -> bool:
        asked.append(now)
        return now >= 20

    run = open_loop(WORK, instants, duration_s=60, stop=stop)

    assert asked == [5, 10, 15, 20]
    assert run.sent_until == 20 and not run.is_flooded
    assert len(run.requests) == 100


def test_closed_loop_keeps_the_users_busy():
    """Four users are four in flight after the start, spread over the stagger; X = N / E2E."""
    run = closed_loop(WORK, 4, duration_s=30, stagger_s=2.0)

    done = [request for request in run.requests if request.ended_at is not None and request.sent_at > 2]
    e2e_s = sum((request.ended_at or 0) - request.sent_at for request in done) / len(done)
    assert {0.0, 0.5, 1.0, 1.5} <= {request.sent_at for request in run.requests}
    assert sum(request.kind == UNFINISHED for request in run.requests) == 4
    assert len(done) / 28 == pytest.approx(4 / e2e_s, rel=0.05)


def test_a_refused_user_comes_back_after_a_second():
    """A server without a queue and one slot: the other users ask once a second, not in a loop."""
    tiny = replace(WORK, profile=profile("vllm", slots=1, max_queue=0, median=2000, sigma=0.0))

    run = closed_loop(tiny, 3, duration_s=10, stagger_s=0.1)

    refused = [request for request in run.requests if request.kind == "rate_limited"]
    assert 16 <= len(refused) <= 20
    assert all(request.first_at is None for request in refused)


def test_the_server_is_sampled_each_second():
    """Counters at both ends and each second between."""
    run = open_loop(WORK, schedule("constant", rate_per_s=5, duration_s=10, seed=1), duration_s=10)

    assert [sample.at for sample in run.samples] == list(range(11))
    assert any(sample.running for sample in run.samples)


def test_the_same_seed_is_the_same_test():
    """Lengths and arrivals come from seeds, nothing from elsewhere."""
    instants = schedule("poisson", rate_per_s=5, duration_s=10, seed=4)
    spread = replace(WORK, profile=profile("vllm"))

    first, second = (open_loop(spread, instants, duration_s=10).requests for _ in range(2))

    assert first == second
    assert first != open_loop(replace(spread, seed=2), instants, duration_s=10).requests


@pytest.mark.parametrize(("users", "tokens_per_s"), [(32, 1798), (64, 2706), (128, 3651), (256, 4386)])
def test_profile_fp16_in_closed_loop(users: int, tokens_per_s: float):
    """A 70B model in 16 bits: the throughputs of the fit, within 5 %, and no preemption."""
    row = VirtualBench(profile("fp16")).run(Probe("closed", users, 15.0, 30.0)).measures

    assert row.output_tokens_per_s == pytest.approx(tokens_per_s, rel=0.05)
    assert row.preemption_rate == 0
