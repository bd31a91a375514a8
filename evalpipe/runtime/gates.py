"""Gates: what lets a worker send. LimitGate spends permits of a lease.

The worker's loop is the same whatever the gate: `await gate.next()` gives a Permit, `gate.give_back()` ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from evalpipe.control.lease import Lease, Permit, Report, WorkerLease
from evalpipe.control.observation import Observation
from evalpipe.control.quota import Told


class Gate(Protocol):
    async def next(self) -> Permit:
        """Wait until one request may be sent."""

    def give_back(self) -> None:
        """End one request, however it ended."""


class LimitGate:
    """Permits from the controller's lease: evaluation, features, closed-loop load test.

    One waiter at a time (the worker's dispatcher), so there is no queue here to be unfair in.
    """

    def __init__(self, *, worker: str, incarnation: int, clock: Callable[[], float]) -> None:
        self._worker, self._incarnation, self._clock = worker, incarnation, clock
        self._lease = WorkerLease()
        self._changed = asyncio.Event()
        self._told: tuple[Told, ...] = ()

    @property
    def in_flight(self) -> int:
        return self._lease.in_flight

    @property
    def permits(self) -> int:
        return self._lease.lease.permits

    @property
    def is_expired(self) -> bool:
        """The lease was not renewed within its TTL: the controller is gone or cannot be reached."""
        return self._lease.is_expired(now=self._clock())

    async def next(self) -> Permit:
        while True:
            permit = self._lease.take(now=self._clock())
            if permit is not None:
                return permit
            self._changed.clear()
            await self._changed.wait()

    def give_back(self) -> None:
        self._lease.give_back()
        self._changed.set()

    def brake(self) -> None:
        self._lease.brake()

    def report(self, observation: Observation, *, want: int) -> Report:
        """Begin an exchange: fill in the counts that the gate knows, and what it heard of quotas."""
        sequence, in_flight, peak, held = self._lease.ask(want=want, now=self._clock())
        told, self._told = self._told, ()
        seen = replace(observation, in_flight=in_flight, in_flight_peak=peak, told=told)
        return Report(self._worker, self._incarnation, sequence, held, want, seen, sent=self._lease.sent)

    def hear(self, told: Told) -> None:
        """Take in what a response said of quotas; the newest since the last exchange is passed on."""
        self._told = (told,)

    def renew(self, lease: Lease) -> None:
        self._lease.renew(lease)
        self._changed.set()
