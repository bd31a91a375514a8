"""The gates of a load test, in virtual time: when permits come, and what each is stamped with."""

from __future__ import annotations

import asyncio

import pytest
from jumpy import run_virtual

from evalpipe.loadtest.arrivals import look_at, schedule, share_of
from evalpipe.runtime.schedule import Exhausted, ScheduleGate, UsersGate


def sent(instants: list[float], *, busy_s: float = 0.0) -> list[tuple[float, float]]:
    """(scheduled, when the permit came) of every permit; busy_s: the dispatcher takes so long over each."""

    async def main(clock):
        zero_at = clock()
        gate = ScheduleGate(instants, zero_at=zero_at, clock=clock)
        found = []
        while True:
            try:
                await gate.next()
            except Exhausted:
                return found
            found.append((gate.scheduled_at, clock() - zero_at))
            await asyncio.sleep(busy_s)

    return run_virtual(main)


def test_permits_come_at_their_instants():
    """Each at its own time, none before, none given back is needed: open loop has no cap."""
    found = sent([0.5, 0.75, 2.0])

    assert [due for due, _ in found] == [0.5, 0.75, 2.0]
    assert [at for _, at in found] == pytest.approx([0.5, 0.75, 2.0])


def test_a_late_dispatcher_catches_up_and_keeps_the_stamps():
    """Busy for a second after each: later ones follow at once, stamped with when they were due, none dropped."""
    found = sent([0.0, 0.2, 0.4, 5.0], busy_s=1.0)

    assert [due for due, _ in found] == [0.0, 0.2, 0.4, 5.0]
    assert [at for _, at in found] == pytest.approx([0.0, 1.0, 2.0, 5.0])


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_what_workers_send_together_is_poisson(workers: int):
    """The permits of all workers' gates, each with its share of one schedule: dispersion 0.9 to 1.1, KS p > 0.01."""
    instants = schedule("poisson", rate_per_s=25, duration_s=300, seed=7)

    shares = [share_of(instants, worker=worker, workers=workers) for worker in range(workers)]
    seen = look_at(sorted(at for share in shares for _, at in sent(list(share))), rate_per_s=25, end=300)

    assert seen.count == len(instants)
    assert seen.dispersion is not None and 0.9 <= seen.dispersion <= 1.1
    assert seen.ks_p > 0.01


def users(starts: list[float], *, answer_s: float, until_s: float) -> list[float]:
    """When users of a closed loop sent, each answer taking answer_s."""

    async def main(clock):
        zero_at = clock()
        gate = UsersGate(starts, zero_at=zero_at, clock=clock)
        found = []

        async def answer():
            await asyncio.sleep(answer_s)
            gate.give_back()

        async def send():
            while True:
                await gate.next()
                found.append(gate.scheduled_at)
                tasks.append(asyncio.create_task(answer()))

        tasks: list[asyncio.Task[None]] = []
        sending = asyncio.create_task(send())
        await asyncio.sleep(until_s)
        for task in (sending, *tasks):
            task.cancel()
        return found

    return run_virtual(main)


def test_users_start_one_after_another_and_send_again_when_answered():
    """Two users half a second apart, a second an answer: each sends once a second from its own start on."""
    assert users([0.0, 0.5], answer_s=1.0, until_s=2.7) == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.5], abs=1e-6)


def test_never_more_in_flight_than_users():
    """Answers that take for ever: as many requests as users, and no more."""
    assert users([0.0, 0.1, 0.2], answer_s=100.0, until_s=50.0) == pytest.approx([0.0, 0.1, 0.2], abs=1e-6)
