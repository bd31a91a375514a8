"""How a server says no: with which status, with what advice, how late, and at times for no reason at all."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.wrapped import Wrapped

TOO_MANY = Rejection(429, None, "rate_limit_exceeded")


@dataclass(frozen=True, slots=True)
class Advice:
    """Every Retry-After says the same, whatever the truth. None: there is none.

    As the client reads it (endpoint/retry_after.py): a negative number or garbage is none, 3600 is 300.
    """

    retry_after_s: float | None

    def around(self, model: ServerModel) -> ServerModel:
        return _Advising(model, self.retry_after_s)


@dataclass(frozen=True, slots=True)
class LateNo:
    """A rejection comes seconds after the request, inside a stream that began with 200, as vLLM's do."""

    seconds: float

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ConfigError(f"seconds must be above 0, got {self.seconds:g}")

    def around(self, model: ServerModel) -> ServerModel:
        return _Late(model, self.seconds)


@dataclass(frozen=True, slots=True)
class Burst:
    """From an instant on, requests get a 429 for no reason: so many of them, and for so long at most."""

    at_s: float
    count: int
    seconds: float = 10.0

    def around(self, model: ServerModel) -> ServerModel:
        return _Bursting(model, self)


class _Advising(Wrapped):
    def __init__(self, model: ServerModel, retry_after_s: float | None) -> None:
        super().__init__(model)
        self._retry_after_s = retry_after_s

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        rejection = super().submit(job, now=now)
        return None if rejection is None else replace(rejection, retry_after_s=self._retry_after_s)


class _Late(Wrapped):
    def __init__(self, model: ServerModel, seconds: float) -> None:
        super().__init__(model)
        self._seconds = seconds
        self._refused: list[tuple[float, int, Rejection]] = []  # when told, job; in order of time

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        rejection = super().submit(job, now=now)
        if rejection is None or rejection.status == 400:
            return rejection
        self._refused.append((now + self._seconds, job.job_id, rejection))
        return None

    def cancel(self, job_id: int, *, now: float) -> None:
        self._refused = [refused for refused in self._refused if refused[1] != job_id]
        super().cancel(job_id, now=now)

    def next_event_at(self) -> float:
        return min(super().next_event_at(), self._refused[0][0] if self._refused else math.inf)

    def advance(self, now: float) -> list[Event]:
        events = super().advance(now)
        due = sum(at <= now for at, _, _ in self._refused)
        late = [Event("failed", job_id, at, rejection) for at, job_id, rejection in self._refused[:due]]
        del self._refused[:due]
        return list(heapq.merge(events, late, key=lambda event: event.at)) if late else events


class _Bursting(Wrapped):
    def __init__(self, model: ServerModel, burst: Burst) -> None:
        super().__init__(model)
        self._burst, self._left = burst, burst.count

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        if self._left == 0 or not self._burst.at_s <= now < self._burst.at_s + self._burst.seconds:
            return super().submit(job, now=now)
        self._left -= 1
        return TOO_MANY
