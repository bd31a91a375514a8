"""Sends one test of a load test and keeps the stamps of every request. One event loop, no Ray, no retries.

Judges nothing: what the stamps mean is for evalpipe.loadtest. The client's own health is measured beside them.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evalpipe.control.lease import Permit
from evalpipe.errors import EndpointError
from evalpipe.loadtest.records import OK, UNFINISHED, LoadRun, Request
from evalpipe.records import Completion
from evalpipe.records import Request as Prompt
from evalpipe.runtime.load_prompts import Prompts
from evalpipe.runtime.schedule import Exhausted

TICK_S = 0.05
STOP_EVERY_S = 5.0
ENDING_S = 1.0  # for requests that are cancelled to end


class LoadGate(Protocol):
    """A gate whose permits know when they were due."""

    in_flight: int
    scheduled_at: float

    async def next(self) -> Permit: ...

    def give_back(self) -> None: ...


class LoadSender(Protocol):
    """What is asked of an endpoint; endpoint.client.Endpoint is the real one."""

    async def send(self, request: Prompt, *, deadline_s: float, progress: Flight | None = None) -> Completion: ...


@dataclass(slots=True, eq=False)
class Flight:
    """One request under way, told of by the endpoint as its stream arrives. Instants on the clock."""

    clock: Callable[[], float]
    scheduled_at: float
    sent_at: float
    first_at: float | None = None
    ended_at: float | None = None
    kind: str = UNFINISHED
    prompt_tokens: int = 0
    output_tokens: int = 0
    chunks_at: array[float] = field(default_factory=lambda: array("d"))

    def first_token(self) -> None:
        self.first_at = self.clock()

    def tokens(self, count: int) -> None:
        self.chunks_at.append(self.clock())
        self.output_tokens += count

    def answered(self, completion: Completion) -> None:
        self.ended_at, self.kind = self.clock(), OK
        if completion.ttft_s is not None and self.first_at is not None:
            self.sent_at = self.first_at - completion.ttft_s  # when it went to a connection
        else:
            self.sent_at = self.ended_at - completion.rtt_s
        self.prompt_tokens = completion.prompt_tokens
        self.output_tokens = completion.output_tokens or self.output_tokens

    def failed(self, error: EndpointError) -> None:
        self.ended_at, self.kind = self.clock(), error.failure.kind

    def freeze(self, zero_at: float, *, with_chunks: bool = True) -> Request:
        return Request(
            scheduled_at=self.scheduled_at,
            sent_at=self.sent_at - zero_at,
            first_at=None if self.first_at is None else self.first_at - zero_at,
            ended_at=None if self.ended_at is None else self.ended_at - zero_at,
            kind=self.kind,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            chunks_at=array("d", [at - zero_at for at in self.chunks_at]) if with_chunks else (),
        )


@dataclass(frozen=True, slots=True)
class Health:
    """Of the client during a test. cpu_share: of a core. lag_s: lateness of the event loop at each tick."""

    cpu_share: float = 0.0
    lag_s: Sequence[float] = ()

    @property
    def lag_p99_s(self) -> float:
        return sorted(self.lag_s)[int(0.99 * len(self.lag_s))] if self.lag_s else 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a test ends. until_s: sending. drain_s: waiting for what is in flight then. most_in_flight: at once.

    failed_wait_s: a user of a closed loop whose request failed comes back after this. is_certain: asked each five
    seconds with what there is so far, in a thread; is_interrupted: asked twenty times a second.
    """

    until_s: float
    drain_s: float
    most_in_flight: int
    failed_wait_s: float = 0.0
    is_certain: Callable[[Sequence[Request], float], bool] = lambda requests, now: False
    is_interrupted: Callable[[], bool] = lambda: False


class LoadLoop:
    """Runs one test. zero_at: the instant that the gate's times count from."""

    def __init__(
        self,
        sender: LoadSender,
        prompts: Prompts,
        *,
        zero_at: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sender, self._prompts, self._clock, self._zero_at = sender, prompts, clock, zero_at
        self._flights: list[Flight] = []
        self._running: set[asyncio.Task[None]] = set()
        self._lags: list[float] = []

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def now(self) -> float:
        return self._clock() - self._zero_at

    async def run(self, gate: LoadGate, bounds: Bounds) -> tuple[LoadRun, Health]:
        """Send what the gate permits until a bound ends it; return every request, those unfinished too."""
        cpu_s, began_at = time.process_time(), self._clock()
        sending = asyncio.create_task(self._send_all(gate, bounds))
        is_interrupted = await self._watch(bounds)
        sent_until, is_flooded = min(self.now, bounds.until_s), self.in_flight > bounds.most_in_flight
        share = (time.process_time() - cpu_s) / max(self._clock() - began_at, 1e-9)
        await _end(sending)
        await self._drain(0.0 if is_flooded or is_interrupted else bounds.drain_s, bounds)
        await _end(*self._running)
        requests = [flight.freeze(self._zero_at) for flight in self._flights]
        return LoadRun(requests, (), sent_until, self.now, is_flooded), Health(share, self._lags)

    async def _watch(self, bounds: Bounds) -> bool:
        """Wait for the end of sending, measuring the lateness of the loop; return whether we were interrupted."""
        asked_at = 0.0
        while self.now < bounds.until_s and self.in_flight <= bounds.most_in_flight:
            if bounds.is_interrupted():
                return True
            if self.now - asked_at >= STOP_EVERY_S:
                asked_at = self.now
                if await asyncio.to_thread(self._is_certain, bounds):  # it takes longer than a stamp may be late
                    break
            began_at = self._clock()
            await asyncio.sleep(TICK_S)
            self._lags.append(max(self._clock() - began_at - TICK_S, 0.0))
        return False

    async def _drain(self, seconds: float, bounds: Bounds) -> None:
        ends_at = self.now + seconds
        while self._running and self.now < ends_at and not bounds.is_interrupted():
            await asyncio.wait(self._running, timeout=min(TICK_S, max(ends_at - self.now, 0.0)))

    async def _send_all(self, gate: LoadGate, bounds: Bounds) -> None:
        number = 0
        while True:
            try:
                await gate.next()
            except Exhausted:
                return
            prompt = self._prompts(number)
            number += 1
            flight = Flight(self._clock, gate.scheduled_at, self._clock())
            self._flights.append(flight)
            task = asyncio.create_task(self._send_one(gate, flight, prompt, bounds))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _send_one(self, gate: LoadGate, flight: Flight, prompt: Prompt, bounds: Bounds) -> None:
        deadline_s = bounds.until_s - self.now + bounds.drain_s + ENDING_S
        try:
            flight.answered(await self._sender.send(prompt, deadline_s=deadline_s, progress=flight))
        except EndpointError as error:
            flight.failed(error)
            await asyncio.sleep(bounds.failed_wait_s)
        finally:
            gate.give_back()

    def _is_certain(self, bounds: Bounds) -> bool:
        requests = [flight.freeze(self._zero_at, with_chunks=False) for flight in list(self._flights)]
        return bounds.is_certain(requests, self.now)


async def _end(*tasks: asyncio.Task[None]) -> None:
    """Cancel and wait; an error of a task that had ended by itself is raised."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
