"""One test of a load test in virtual time: stamps, bounds, interruption, a server that fails or hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from jumpy import run_virtual

from evalpipe.endpoint.failures import make
from evalpipe.loadtest.records import LoadRun
from evalpipe.records import Completion, Status
from evalpipe.runtime.load_loop import Bounds, Health, LoadLoop
from evalpipe.runtime.load_prompts import MadeUp
from evalpipe.runtime.schedule import ScheduleGate, UsersGate

BOUNDS = Bounds(until_s=4.0, drain_s=10.0, most_in_flight=100)


@dataclass
class Server:
    """First token after 0.2 s, then one chunk each 0.1 s; fails from an instant on, or never answers."""

    clock: Callable[[], float]
    chunks: int = 4
    fails_after: float = float("inf")
    hangs: bool = False
    asked: list[str] = field(default_factory=list)

    async def send(self, request, *, deadline_s, progress=None) -> Completion:
        began_at = self.clock()
        self.asked.append(request.item_id)
        if began_at >= self.fails_after:
            raise make("connect_failed")
        if self.hangs:
            await asyncio.sleep(deadline_s)
            raise make("timeout")
        await asyncio.sleep(0.2)
        progress.first_token()
        progress.tokens(2)
        for _ in range(self.chunks - 1):
            await asyncio.sleep(0.1)
            progress.tokens(2)
        rtt_s = self.clock() - began_at
        return Completion("text", "stop", Status.OK, rtt_s, 0.2, None, 7, 8, usage_source="server")


def ran(
    *, instants: list[float] | None = None, users: int = 0, bounds: Bounds = BOUNDS, **server
) -> tuple[LoadRun, Health]:
    async def main(clock):
        zero_at = clock()
        if "fails_after" in server:
            server["fails_after"] += zero_at
        loop = LoadLoop(Server(clock, **server), MadeUp(16), zero_at=zero_at, clock=clock)
        if instants is not None:
            return await loop.run(ScheduleGate(instants, zero_at=zero_at, clock=clock), bounds)
        return await loop.run(UsersGate([0.0] * users, zero_at=zero_at, clock=clock), bounds)

    return run_virtual(main)


def test_every_request_has_four_stamps_and_its_chunks():
    """Due at 1 s: sent then, first token 0.2 s later, last byte after three more chunks."""
    run, health = ran(instants=[1.0])

    (request,) = run.requests
    assert request.is_ok
    assert (request.scheduled_at, request.sent_at) == pytest.approx((1.0, 1.0))
    assert request.first_at == pytest.approx(1.2)
    assert request.ended_at == pytest.approx(1.5)
    assert list(request.chunks_at) == pytest.approx([1.2, 1.3, 1.4, 1.5])
    assert (request.prompt_tokens, request.output_tokens) == (7, 8)
    assert health.lag_p99_s < 0.001


def test_open_loop_waits_for_the_last_answers():
    """Sending ends at 4 s; a request of 3.9 s is followed to its end."""
    run, _ = ran(instants=[3.9])

    assert run.sent_until == pytest.approx(4.0)
    assert [request.kind for request in run.requests] == ["ok"]
    assert run.ended_at == pytest.approx(4.4, abs=0.06)


def test_closed_loop_has_so_many_in_flight():
    """Three users, half a second an answer, no drain: those in flight at the end stay unfinished."""
    run, _ = ran(users=3, bounds=replace(BOUNDS, drain_s=0.0))

    kinds = [request.kind for request in run.requests]
    assert kinds.count("ok") == pytest.approx(3 * 8, abs=3)
    assert kinds.count("unfinished") == 3


def test_the_bound_on_requests_in_flight_ends_a_flood():
    """A server that hangs: at the eleventh request in flight it is over, long before the time; all are kept."""
    run, _ = ran(instants=[i * 0.1 for i in range(40)], hangs=True, bounds=replace(BOUNDS, most_in_flight=10))

    assert run.is_flooded
    assert run.sent_until == pytest.approx(1.0, abs=0.15)
    assert {request.kind for request in run.requests} == {"unfinished"}


def test_a_hanging_server_does_not_hang_the_test():
    """Nobody answers: the drain ends, and what was in flight is unfinished or timed out."""
    run, _ = ran(instants=[1.0, 2.0], hangs=True)

    assert run.ended_at <= 4.0 + 10.0 + 1.1
    assert {request.kind for request in run.requests} <= {"unfinished", "timeout"}


def test_a_server_that_dies_gives_failures_to_the_end():
    """Answers until 2 s, refusals after: open loop goes on sending, and each refusal is a row."""
    run, _ = ran(instants=[i * 0.25 for i in range(16)], fails_after=2.0)

    assert [request.kind for request in run.requests] == ["ok"] * 8 + ["connect_failed"] * 8


def test_users_of_a_dead_server_ask_once_a_second():
    """No busy loop: five users in four seconds are about twenty tries."""
    run, _ = ran(users=5, fails_after=0.0, bounds=replace(BOUNDS, drain_s=0.0, failed_wait_s=1.0))

    assert 20 <= len(run.requests) <= 25


def test_an_interrupt_ends_it_at_once_and_keeps_what_there_is():
    """Told to stop after about a second: no drain, answers so far are kept."""
    ticks = iter(range(10_000))

    run, _ = ran(
        instants=[i * 0.25 for i in range(16)], bounds=replace(BOUNDS, is_interrupted=lambda: next(ticks) > 20)
    )

    assert run.sent_until == pytest.approx(1.05, abs=0.1)
    assert run.ended_at == pytest.approx(run.sent_until, abs=0.1)
    assert [request.kind for request in run.requests[:2]] == ["ok", "ok"]
    assert run.requests[-1].kind == "unfinished"
