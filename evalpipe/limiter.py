"""Limiter: the guard that spends a law's limit inside one asyncio program. No Ray, no network.

It owns the count of permits, never their number: that is the law's. One event loop, no threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from evalpipe.control.law import Law, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import Paused

P = ParamSpec("P")
T = TypeVar("T")

CHANGES_KEPT = 1000
# Too Many Requests, Service Unavailable, Overloaded: the statuses that ask for less load (DESIGN section 4, pause)
OVERLOAD_STATUSES = (429, 503, 529)


class Permit:
    """The right to one request, and the place to say what became of it. Call it to give it back.

    limit, epoch: of the law when it was granted. in_flight_at_send: permits out then, this one included.
    What was said last counts; nothing said means ok.
    """

    __slots__ = ("_finish", "_sample", "is_said", "sent_at")

    def __init__(self, finish: Callable[[Permit, Sample], None], granted: Sample, *, sent_at: float) -> None:
        self._finish: Callable[[Permit, Sample], None] | None = finish
        self._sample = granted
        self.is_said = False
        self.sent_at = sent_at

    @property
    def limit(self) -> int:
        return self._sample.limit

    @property
    def epoch(self) -> int:
        return self._sample.epoch

    @property
    def in_flight_at_send(self) -> int:
        return self._sample.in_flight_at_send

    def ok(self, *, prompt_tokens: int = 0, output_tokens: int = 0, ttft_s: float | None = None) -> None:
        """Say that it was answered. Token counts let a law tell long work from slow work; ttft_s: from the send."""
        self._say(
            replace(
                self._sample,
                outcome=Outcome.OK,
                kind="ok",
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                ttft_s=ttft_s,
            )
        )

    def drop(self, retry_after_s: float | None = None, *, kind: str = "rate_limited") -> None:
        """Say that the server is overloaded. The law is told retry_after_s; waiting for it is the caller's part."""
        self._say(replace(self._sample, outcome=Outcome.DROPPED, kind=kind, retry_after_s=retry_after_s))

    def ignore(self, *, kind: str = "ignored") -> None:
        """Say that it teaches nothing about load: the request's own fault, a lone reset, a cancelled send."""
        self._say(replace(self._sample, outcome=Outcome.IGNORED, kind=kind))

    def fail(self, error: BaseException) -> None:
        """Say what an exception means, unless something was said: overload where it names one, else nothing."""
        if self.is_said:
            return
        if isinstance(error, Paused):
            self.drop(error.failure.retry_after_s, kind=error.failure.kind)
        elif getattr(error, "status_code", None) in OVERLOAD_STATUSES:  # as the openai client and its relatives have it
            self.drop()
        else:
            self.ignore()

    def __call__(self) -> None:
        """Give the permit back; a second call does nothing."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(self, self._sample)

    def _say(self, sample: Sample) -> None:
        self._sample = sample
        self.is_said = True


class Limiter:
    """Let at most the law's limit of requests be in flight; first come, first served.

        limiter = Limiter(build_law("gradient"))
        async with limiter.permit() as permit:
            answer = await ask()
            permit.ok(output_tokens=answer.output_tokens)

    A smaller limit stops new permits and takes none away. A waiter that is cancelled leaves no permit behind.
    clock: float seconds, monotonic.
    """

    def __init__(self, law: Law, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.law = law
        self._clock = clock
        self._in_flight = 0
        self._peak = 0
        self._waiters: deque[asyncio.Future[Permit]] = deque()
        self._changes: deque[LimitChange] = deque(maxlen=CHANGES_KEPT)

    @property
    def limit(self) -> int:
        """Permits that may be out now: the floor of the law's limit."""
        return math.floor(self.law.state.limit)

    @property
    def in_flight(self) -> int:
        """Permits out now; above `limit` for a while after a cut."""
        return self._in_flight

    @property
    def changes(self) -> Sequence[LimitChange]:
        """The last 1,000 moves of the limit, oldest first."""
        return tuple(self._changes)

    @contextlib.asynccontextmanager
    async def permit(self) -> AsyncIterator[Permit]:
        """Wait for a permit, and give it back at the end of the block.

        Nothing said by then means ok on a clean end. An exception (it passes on) teaches nothing, unless it names an
        overload: our Paused, or a status_code of 429, 503 or 529.
        """
        permit = await self._acquire()
        try:
            yield permit
        except BaseException as error:
            permit.fail(error)
            raise
        finally:
            permit()

    async def run(self, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await fn(*args, **kwargs) under a permit. Its result and exceptions are the caller's."""
        async with self.permit():
            return await fn(*args, **kwargs)

    def try_acquire(self) -> Permit | None:
        """Return a permit at once, or None: shed this one. Say what became of it, then call it, whatever happens.

        done = limiter.try_acquire()
        if done is None: ...
        """
        return self._grant() if self._has_room() else None

    async def _acquire(self) -> Permit:
        if self._has_room():
            return self._grant()
        waiter: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            permit = await waiter
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise
        permit.sent_at = self._clock()  # between grant and now the loop may have been busy: that is no latency
        return permit

    def _abandon(self, waiter: asyncio.Future[Permit]) -> None:
        """Undo a wait that was cancelled, perhaps in the same turn of the loop in which its permit was granted."""
        if waiter.done() and not waiter.cancelled():
            self._in_flight -= 1
            self._wake()
            return
        with contextlib.suppress(ValueError):  # _wake met it first
            self._waiters.remove(waiter)

    def _has_room(self) -> bool:
        # whoever waits is first: between a cancelled waiter and its removal there can be room and a queue
        return self._in_flight < self.limit and not any(not waiter.done() for waiter in self._waiters)

    def _grant(self) -> Permit:
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)
        granted = Sample(
            Outcome.OK, rtt_s=0.0, epoch=self.law.state.epoch, limit=self.limit, in_flight_at_send=self._in_flight
        )
        return Permit(self._finish, granted, sent_at=self._clock())

    def _finish(self, permit: Permit, said: Sample) -> None:
        """Take a permit back, tell the law, let the next in line go."""
        now = self._clock()
        self._in_flight -= 1
        sample = replace(said, rtt_s=now - permit.sent_at)
        self._observe(sample)
        change = self.law.decide(now=now)
        if change is not None:
            self._changes.append(change)
        self._wake()

    def _observe(self, sample: Sample) -> None:
        self.law.observe(
            Observation(
                in_flight=self._in_flight,
                in_flight_peak=self._peak,
                prefill_tokens=sample.prompt_tokens,
                output_tokens=sample.output_tokens,
                samples=(sample,),
            )
        )
        self._peak = self._in_flight

    def _wake(self) -> None:
        while self._waiters and self._in_flight < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(self._grant())
