"""The gradient law as published, to the letter, for comparison with our own in gradient.py.

    gradient = clamp(rtt_min / (median + 1e-6), 0.5, 1.5)          every `window` successes
    limit    = clamp(limit * gradient + beta)                      then the window is cleared
    limit    = clamp(limit * cut)                                  on each rejection

What does not work in it is kept: raw latency mistakes long answers for congestion unless `normalise` is "total", the
upper clamp is never reached because the minimum is at most the median, and a burst of rejections cuts many times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError

MIN_GRADIENT = 0.5
MAX_GRADIENT = 1.5
EPSILON_S = 1e-6  # of the publication: keeps a median of zero from dividing


@dataclass(slots=True)
class GradientPublishedState:
    """Everything the law remembers. Latencies in seconds, or in seconds per token with `normalise="total"`.

    window: latencies since the last update. rtt_min_s: None before the first success.
    elapsed_s: time this law has been deciding, over all processes; rtt_min_at_s is an instant of that clock.
    """

    limit: float
    epoch: int = 0
    window: list[float] = field(default_factory=list)
    rtt_min_s: float | None = None
    rtt_min_at_s: float = 0.0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Move:
    delta: float
    reason: str
    evidence: Evidence


class GradientPublishedLaw:
    """Compare the smallest latency with the median of the last `window` successes.

    beta: permits added at each update. cut: factor on each rejection. normalise "total": latency per prompt and output
    token; a success without token counts then teaches nothing. rtt_min_expiry_s: age at which the next success
    replaces the minimum, however slow it is; None: never. Raises ConfigError for options out of range.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        state: GradientPublishedState | None = None,
        window: int = 25,
        beta: float = 1.5,
        cut: float = 0.7,
        normalise: Literal["none", "total"] = "none",
        rtt_min_expiry_s: float | None = 600.0,
    ) -> None:
        if window < 1:
            raise ConfigError(f"window must be at least 1 sample, got {window}")
        if beta < 0:
            raise ConfigError(f"beta must be at least 0, got {beta:g}")
        if not 0 < cut < 1:
            raise ConfigError(f"cut must lie between 0 and 1, both excluded, got {cut:g}")
        if rtt_min_expiry_s is not None and not rtt_min_expiry_s > 0:
            raise ConfigError(f"rtt_min_expiry_s must be above 0, or null for never, got {rtt_min_expiry_s:g}")
        self.state = state or GradientPublishedState(limit=bounds.start)
        self._bounds = bounds
        self._window = window
        self._beta = beta
        self._cut = cut
        self._normalise = normalise
        self._expiry_s = math.inf if rtt_min_expiry_s is None else rtt_min_expiry_s
        self._pending: list[Observation] = []
        self._last_now: float | None = None

    def observe(self, observation: Observation) -> None:
        """Remember; `decide` reads it."""
        self._pending.append(observation)

    def decide(self, *, now: float) -> LimitChange | None:
        """Take the remembered samples in order; the reason is that of the largest step in the net direction."""
        self._advance(now)
        old = self.state.limit
        pending, self._pending = self._pending, []
        steps = (self._take(sample) for observation in pending for sample in observation.samples)
        moves = [move for move in steps if move is not None]
        new = self.state.limit
        if new == old:
            return None
        decisive = (max if new > old else min)(moves, key=lambda move: move.delta)
        return LimitChange(old, new, decisive.reason, decisive.evidence)

    def _advance(self, now: float) -> None:
        """Move the law's own clock: the state may outlive the process that `now` belongs to."""
        if self._last_now is not None:
            self.state.elapsed_s += max(0.0, now - self._last_now)
        self._last_now = now

    def _take(self, sample: Sample) -> _Move | None:
        if sample.outcome is Outcome.DROPPED:
            return self._move(self.state.limit * self._cut, reason="rejected", evidence=Evidence(samples=1))
        latency_s = self._latency(sample) if sample.outcome is Outcome.OK else None
        if latency_s is None:
            return None
        self._lower_minimum(latency_s)
        self.state.window.append(latency_s)
        return self._update() if len(self.state.window) >= self._window else None

    def _latency(self, sample: Sample) -> float | None:
        if not (math.isfinite(sample.rtt_s) and sample.rtt_s > 0):
            return None
        if self._normalise == "none":
            return sample.rtt_s
        tokens = sample.prompt_tokens + sample.output_tokens
        return sample.rtt_s / tokens if tokens > 0 else None

    def _lower_minimum(self, latency_s: float) -> None:
        state = self.state
        is_expired = state.elapsed_s - state.rtt_min_at_s >= self._expiry_s
        if state.rtt_min_s is None or latency_s < state.rtt_min_s or is_expired:
            state.rtt_min_s, state.rtt_min_at_s = latency_s, state.elapsed_s

    def _update(self) -> _Move:
        window, self.state.window = self.state.window, []
        median_s = sorted(window)[len(window) // 2]  # the upper one of an even window
        rtt_min_s = self.state.rtt_min_s
        assert rtt_min_s is not None, "a full window has seen a success"
        gradient = rtt_min_s / (median_s + EPSILON_S)
        target = self.state.limit * min(max(gradient, MIN_GRADIENT), MAX_GRADIENT) + self._beta
        evidence = Evidence(baseline_s=rtt_min_s, recent_s=median_s, gradient=gradient, samples=len(window))
        return self._move(target, reason="queue" if target < self.state.limit else "grow", evidence=evidence)

    def _move(self, target: float, *, reason: str, evidence: Evidence) -> _Move:
        old = self.state.limit
        self.state.epoch += target < old
        self.state.limit = self._bounds.clamp(target)
        return _Move(self.state.limit - old, reason, evidence)
