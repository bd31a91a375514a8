"""The worker's gate: permits, credits and the brake, in events; no waiting for time to pass."""

from __future__ import annotations

import asyncio

from evalpipe.control.lease import Lease
from evalpipe.control.observation import Observation
from evalpipe.control.quota import Meter, Told
from evalpipe.runtime.gates import LimitGate


def lease(permits: int, *, credits: int | None = None) -> Lease:
    return Lease(permits, epoch=0, limit=permits, ttl_s=15.0, next_exchange_s=0.1, credits=credits)


def renewed(gate: LimitGate, permits: int, *, credits: int | None = None, want: int = 100) -> None:
    """One whole exchange."""
    gate.report(Observation(), want=want)
    gate.renew(lease(permits, credits=credits))


def gate_with(permits: int, *, credits: int | None = None) -> LimitGate:
    gate = LimitGate(worker="w0", incarnation=1, clock=lambda: 0.0)
    renewed(gate, permits, credits=credits)
    return gate


async def passed(gate: LimitGate, *, tries: int = 10) -> int:
    """Return how many get through at once: whoever waits when the loop has nothing left to do does not."""
    tasks = [asyncio.ensure_future(gate.next()) for _ in range(tries)]
    for _ in range(5):
        await asyncio.sleep(0)
    done = sum(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


def test_credits_bound_what_permits_would_allow():
    """Eight permits and three credits: three go, and the answers that come back bring no new ones."""

    async def main() -> None:
        gate = gate_with(8, credits=3)
        first = await passed(gate)
        gate.give_back()
        second = await passed(gate)
        renewed(gate, 8, credits=2)
        third = await passed(gate)

        assert (first, second, third) == (3, 0, 2)

    asyncio.run(main())


def test_an_exchange_gives_all_credits_back():
    """While the controller is asked nothing begins: what was not used may be lent to another worker meanwhile."""

    async def main() -> None:
        gate = gate_with(8, credits=3)
        gate.report(Observation(), want=5)
        asked = await passed(gate)
        gate.renew(lease(8, credits=1))
        answered = await passed(gate)

        assert (asked, answered) == (0, 1)

    asyncio.run(main())


def test_a_report_tells_all_that_ever_began():
    """An absolute count: a lost or doubled call does no harm."""

    async def main() -> None:
        gate = gate_with(8)
        await passed(gate, tries=3)
        for _ in range(3):
            gate.give_back()
        await passed(gate, tries=2)
        report = gate.report(Observation(), want=0)

        assert (report.sent, report.observation.in_flight, report.observation.in_flight_peak) == (5, 2, 3)

    asyncio.run(main())


def test_the_brake_holds_at_once_and_until_the_controller_knows():
    """From the instant of a 429 nothing begins, before any exchange; the next whole exchange releases it."""

    async def main() -> None:
        gate = gate_with(8)
        before = await passed(gate, tries=2)
        gate.brake()
        braked = await passed(gate)
        renewed(gate, 8)
        released = await passed(gate)

        assert (before, braked, released) == (2, 0, 6)

    asyncio.run(main())


def test_what_was_told_of_quotas_goes_with_the_next_report_once():
    """The newest of what responses said, and nothing when they said nothing since."""
    gate = gate_with(8)
    gate.hear(Told(requests=Meter(60, 2, 1.0)))
    gate.hear(Told(requests=Meter(60, 1, 1.0)))

    told = [gate.report(Observation(output_tokens=7), want=0).observation for _ in range(2)]

    assert [seen.told for seen in told] == [(Told(requests=Meter(60, 1, 1.0)),), ()]
    assert told[0].output_tokens == 7
