"""Warm start: begin near where an earlier run settled, without a jump, and without harm when that is no longer true.

`Settling` tells where a run settled; `WarmStart` is a law around a law that leads its limit there. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from evalpipe.control.law import Evidence, Law, LawState, LimitChange
from evalpipe.control.observation import Observation, Outcome

# Below the old level by so much, as another run may share the server now; the law finds the rest soon.
SHARE = 0.6
# A jump of 180 requests to a server with 128 slots and 32 places to wait gave 147 rejections, over 3 s none (notes).
RAMP_S, STEP_S = 3.0, 0.5
STEP_LEAST = 8.0  # requests: fewer at a time are no politer, and each step makes a law begin its measurement anew
# So many without progress mean that the server has no room, whatever it had before.
STUCK_LEAST, STUCK_SHARE = 2, 0.1
BINDS = 0.8  # in flight at this share of the limit: the limit was in use, so it says something about the server
MEMORY, ENOUGH = 600, 20  # ticks of half a second: five minutes, and the ten seconds below which nothing has settled


@dataclass(frozen=True, slots=True)
class Settled:
    """Where an earlier run settled.

    level: requests that really ran; whoever reads it keeps it within the bounds of the law to come. reason: of the
    changes that lead there: "warm_start", or "resume" where it was this very run.
    """

    level: float
    reason: str = "warm_start"


class Settling:
    """Where a run settles: the median of what really ran while the limit was in use."""

    def __init__(self) -> None:
        self._running: deque[int] = deque(maxlen=MEMORY)

    def add(self, *, limit: float, in_flight: int, stuck: int) -> None:
        """Take in one tick. stuck: of those in flight, overdue or stalled."""
        if in_flight >= BINDS * math.floor(limit):
            self._running.append(in_flight - stuck)

    @property
    def level(self) -> float | None:
        """Requests; None before ten seconds were seen in which the limit was in use."""
        return statistics.median(self._running) if len(self._running) >= ENOUGH else None


class WarmStart:
    """A law whose limit is led from its start to 0.6 of the old level within three seconds, a step each half second.

    The first step waits for a sign of life, so that nothing grows before the server has answered. The ramp is over for
    good at the first cut, rejection or timeout, and when requests get stuck, which takes the limit back to what really
    runs: then the law is alone. A level that is wrong by ten times costs what one wrong guess costs, and a level below
    the start nothing. Only the level is handed over: all else that a law has learned did harm on a server that had
    changed since, up to 2.4 times the time of a cold start where the level alone cost 1.04 (virtual time, 2026-11).
    """

    def __init__(self, law: Law, before: Settled) -> None:
        self._law, self._reason = law, before.reason
        self._start, self._target = law.state.limit, SHARE * before.level
        self._began_at: float | None = None  # when the server gave its first sign of life
        self._is_alive = False
        self._is_over = self._target <= self._start
        self._running = 0  # what really runs, once requests are stuck
        self._is_stuck = False

    @property
    def state(self) -> LawState:
        return self._law.state

    def observe(self, observation: Observation) -> None:
        self._law.observe(observation)
        if self._is_over:
            return
        samples, stuck = observation.samples, observation.overdue + observation.stalled
        self._is_alive |= observation.output_tokens > 0 or bool(observation.first_tokens)
        self._is_alive |= any(sample.outcome is Outcome.OK for sample in samples)
        self._is_stuck = stuck > max(STUCK_LEAST, STUCK_SHARE * observation.in_flight)
        self._running = observation.in_flight - stuck
        self._is_over = any(sample.outcome is Outcome.DROPPED or sample.kind == "timeout" for sample in samples)

    def decide(self, *, now: float) -> LimitChange | None:
        change = self._law.decide(now=now)
        if self._is_over or not self._is_alive:
            return change
        if change is not None and change.new < change.old:
            self._is_over = True
            return change
        return self._retreat(change) if self._is_stuck else self._lead(change, now)

    def _lead(self, change: LimitChange | None, now: float) -> LimitChange | None:
        """Lift the limit to the ramp, if that is above it."""
        self._began_at = now if self._began_at is None else self._began_at
        steps = 1 + math.floor((now - self._began_at) / STEP_S + 1e-9)
        step = max((self._target - self._start) * STEP_S / RAMP_S, STEP_LEAST)
        ramp = min(self._start + steps * step, self._target)
        self._is_over = ramp == self._target
        return self._move(change, ramp, self._reason) if ramp > self.state.limit else change

    def _retreat(self, change: LimitChange | None) -> LimitChange | None:
        """End the ramp: what stands before the server in vain is not to be kept there."""
        self._is_over = True
        target = max(self._start, float(self._running))
        if target >= self.state.limit:
            return change
        self.state.epoch += 1
        return self._move(change, target, "queue")

    def _move(self, change: LimitChange | None, target: float, reason: str) -> LimitChange:
        old = self.state.limit if change is None else change.old
        self.state.limit = target
        return LimitChange(old, target, reason, Evidence(state=f"towards {self._target:.0f}"))
