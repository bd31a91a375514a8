"""Gates of a load test: ScheduleGate (open loop: stamped arrivals) and UsersGate (closed loop: N users, one each).

The same interface as LimitGate: `await gate.next()` gives a Permit, `gate.give_back()` ends it. `scheduled_at` belongs
to the permit given last: there is one dispatcher, as there is in a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from evalpipe.control.lease import Permit


class Exhausted(Exception):
    """The schedule is at its end: no request is due any more."""


class ScheduleGate:
    """Permits at given instants, whatever is in flight: never dropped, never put off, no cap.

    instants: seconds after zero_at, ascending; zero_at: on the clock. Late ones follow at once, each with the instant
    that it was due at, so that lateness counts into its latency.
    """

    def __init__(self, instants: Sequence[float], *, zero_at: float, clock: Callable[[], float]) -> None:
        self._instants, self._zero_at, self._clock = instants, zero_at, clock
        self._sent = 0
        self.in_flight = 0
        self.scheduled_at = 0.0

    async def next(self) -> Permit:
        """Wait until the next instant. Raises Exhausted after the last one."""
        if self._sent == len(self._instants):
            raise Exhausted
        due_at = self._instants[self._sent]
        if (wait_s := self._zero_at + due_at - self._clock()) > 0:
            await asyncio.sleep(wait_s)
        self._sent += 1
        self.in_flight += 1
        self.scheduled_at = due_at
        return Permit(0, 0, self.in_flight)

    def give_back(self) -> None:
        self.in_flight -= 1


class UsersGate:
    """Permits for N users of a closed loop: each sends again when its answer is there. They start one after another.

    starts: seconds after zero_at at which a user joins, ascending. scheduled_at: when the permit was given.
    """

    def __init__(self, starts: Sequence[float], *, zero_at: float, clock: Callable[[], float]) -> None:
        self._starts, self._zero_at, self._clock = starts, zero_at, clock
        self._joined = 0
        self._free = 0  # users who have joined and wait for nothing
        self._changed = asyncio.Event()
        self.in_flight = 0
        self.scheduled_at = 0.0

    async def next(self) -> Permit:
        while not self._admit():
            self._changed.clear()
            within_s = None
            if self._joined < len(self._starts):
                within_s = max(self._zero_at + self._starts[self._joined] - self._clock(), 0.0)
            try:
                async with asyncio.timeout(within_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self._free -= 1
        self.in_flight += 1
        self.scheduled_at = self._clock() - self._zero_at
        return Permit(0, len(self._starts), self.in_flight)

    def give_back(self) -> None:
        self.in_flight -= 1
        self._free += 1
        self._changed.set()

    def _admit(self) -> bool:
        """Let in the users whose time has come; say whether one is free."""
        now = self._clock() - self._zero_at
        while self._joined < len(self._starts) and self._starts[self._joined] <= now:
            self._joined += 1
            self._free += 1
        return self._free > 0
