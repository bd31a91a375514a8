"""A server model driven in real time: the clock and the waiting that the model itself must not have."""

from __future__ import annotations

import asyncio
import time

from evalpipe.sim.engine import Event, Job, Rejection, ServerModel


class Flight:
    """A job in the model, as the coroutine that answers it sees it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_started = False  # had its first token
        self.is_done = False
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self, *, within_s: float | None = None) -> None:
        """Wait for `wake`; with within_s at most so long."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if within_s is None else loop.call_later(within_s, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class Drive:
    """Advances the model whenever something is due and tells the flights. Lives on the running event loop."""

    def __init__(self, model: ServerModel) -> None:
        self.model = model
        self._flights: dict[int, Flight] = {}
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, job: Job) -> Flight | Rejection:
        now = self._advance()
        rejection = self.model.submit(job, now=now)
        if rejection is not None:
            return rejection
        flight = self._flights[job.job_id] = Flight(job)
        self._arm(now)
        return flight

    def cancel(self, flight: Flight) -> int:
        """Take the job out if it is still in; return its output tokens."""
        if flight.is_done:
            return flight.job.output_tokens
        now = self._advance()
        tokens = self.tokens_of(flight)
        if self._flights.pop(flight.job.job_id, None) is not None:
            self.model.cancel(flight.job.job_id, now=now)
            self._arm(now)
        return tokens

    def tokens_of(self, flight: Flight) -> int:
        """Return the output tokens up to this moment."""
        self._advance()
        return flight.job.output_tokens if flight.is_done else self.model.tokens_of(flight.job.job_id)

    def _advance(self) -> float:
        now = time.monotonic()
        for event in self.model.advance(now):
            self._tell(event)
        return now

    def _tell(self, event: Event) -> None:
        flight = self._flights.get(event.job_id)
        if flight is None or event.kind == "preempted":
            return
        flight.is_started = True
        if event.kind == "done":
            flight.is_done = True
            del self._flights[event.job_id]
        flight.wake()

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self.model.next_event_at()
        due = self._flights and at < float("inf")
        self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.0), self._on_due) if due else None

    def _on_due(self) -> None:
        self._arm(self._advance())
