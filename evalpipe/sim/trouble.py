"""What happens to a server while it works: it is down, stands still, changes its pace or its size. On a schedule.

Each kind is a value that says what and when (seconds since the server's first moment), and makes a model around
another one of it. Together they are the weather of a course (evalpipe/sim/course.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.wrapped import Wrapped

REFUSED, UNREACHABLE = Rejection(503, None, "service_unavailable"), Rejection(0, None, "connect_failed")
LOST = Rejection(0, None, "reset")


class Trouble(Protocol):
    """One thing that goes wrong."""

    def around(self, model: ServerModel) -> ServerModel: ...


@dataclass(frozen=True, slots=True)
class Outage:
    """The server is gone from start_s for seconds: what it had is lost, what comes is refused.

    is_reachable: a proxy still answers, with 503; else connections fail.
    """

    start_s: float
    seconds: float
    is_reachable: bool = True

    def __post_init__(self) -> None:
        if self.start_s <= 0 or self.seconds <= 0:
            raise ConfigError(f"an outage starts and lasts more than 0 s, got {self}")

    def around(self, model: ServerModel) -> ServerModel:
        return _Down(model, self)


@dataclass(frozen=True, slots=True)
class Paces:
    """The server runs at so many times its own speed from an instant on: (second, factor), in order; 0 stands still."""

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        instants = [at for at, _ in self.steps]
        if instants != sorted(instants) or min(instants, default=0) < 0:
            raise ConfigError(f"paces must be in order of time, from 0 on, got {self.steps}")
        if not self.steps or min(factor for _, factor in self.steps) < 0 or self.steps[-1][1] <= 0:
            raise ConfigError(f"a pace is at least 0, and the last one above it, got {self.steps}")

    def around(self, model: ServerModel) -> ServerModel:
        return _Paced(model, self.steps)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The server has so large a share of its capacity from an instant on: (second, share), in order."""

    steps: tuple[tuple[float, float], ...]

    def around(self, model: ServerModel) -> ServerModel:
        return _Sized(model, self.steps)


class _Down(Wrapped):
    def __init__(self, model: ServerModel, outage: Outage) -> None:
        super().__init__(model)
        self._outage = outage
        self._ends_at = outage.start_s + outage.seconds
        self._inside: dict[int, None] = {}  # job ids in order of arrival
        self._falls_at = outage.start_s

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        if self._outage.start_s <= now < self._ends_at:
            return REFUSED if self._outage.is_reachable else UNREACHABLE
        rejection = super().submit(job, now=now)
        if rejection is None:
            self._inside[job.job_id] = None
        return rejection

    def cancel(self, job_id: int, *, now: float) -> None:
        self._inside.pop(job_id, None)
        super().cancel(job_id, now=now)

    def next_event_at(self) -> float:
        return min(super().next_event_at(), self._falls_at if self._inside else math.inf)

    def advance(self, now: float) -> list[Event]:
        if now < self._falls_at:
            return self._lived(now)
        at, self._falls_at = self._falls_at, math.inf
        return [*self._lived(at), *self._fall(at), *self._lived(now)]

    def _fall(self, at: float) -> list[Event]:
        lost, self._inside = self._inside, {}
        for job_id in lost:
            self._model.cancel(job_id, now=at)
        return [Event("failed", job_id, at, LOST) for job_id in lost]

    def _lived(self, now: float) -> list[Event]:
        events = super().advance(now)
        for event in events:
            if event.kind in ("done", "failed"):
                self._inside.pop(event.job_id, None)
        return events


class _Paced(Wrapped):
    """The model lives in a time of its own, which runs `factor` times as fast as ours."""

    def __init__(self, model: ServerModel, steps: Sequence[tuple[float, float]]) -> None:
        super().__init__(model)
        self._pieces = [(0.0, 0.0, 1.0)]  # (our time, its time, factor) where each begins
        for at, factor in steps:
            began, own, before = self._pieces[-1]
            self._pieces.append((at, own + (at - began) * before, factor))

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        return self._model.submit(job, now=self._own(now))

    def cancel(self, job_id: int, *, now: float) -> None:
        self._model.cancel(job_id, now=self._own(now))

    def next_event_at(self) -> float:
        return self._ours(self._model.next_event_at())

    def advance(self, now: float) -> list[Event]:
        # its own instants, not ours turned into its time: rounding must not leave an event in the future for ever
        events: list[Event] = []
        own = self._own(now)
        while self._ours(due := self._model.next_event_at()) <= now:
            events += self._model.advance(due)
            own = max(own, due)
        events += self._model.advance(own)
        return [Event(event.kind, event.job_id, self._ours(event.at), event.rejection) for event in events]

    def _own(self, now: float) -> float:
        at, own, factor = next(piece for piece in reversed(self._pieces) if piece[0] <= now)
        return own + (now - at) * factor

    def _ours(self, own: float) -> float:
        """Return the first of our instants at which its time is `own`."""
        if own == math.inf:
            return own
        at, began, factor = next(
            piece for piece in reversed(self._pieces) if piece[1] < own or piece is self._pieces[0]
        )
        return at + (own - began) / factor


class _Sized(Wrapped):
    def __init__(self, model: ServerModel, steps: Sequence[tuple[float, float]]) -> None:
        super().__init__(model)
        self._steps = list(steps)

    def next_event_at(self) -> float:
        next_step = self._steps[0][0] if self._steps and self.in_flight else math.inf
        return min(super().next_event_at(), next_step)

    def advance(self, now: float) -> list[Event]:
        events: list[Event] = []
        while self._steps and self._steps[0][0] <= now:
            at, share = self._steps.pop(0)
            events += super().advance(at)
            self._model.resize(share)
        return events + super().advance(now)
