"""`gradient`: the gradient law made to work on language models (first form).

Latency over what this prompt and output should take unloaded (learned, control/work.py), a tolerance for the slowdown
that batching brings without queueing, square-root headroom, one cut an episode. The published form, to the letter, is
in control/gradient_published.py.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.work import GradientMeter, WorkState
from evalpipe.errors import ConfigError

# In use: in flight reached this share of the limit since the last move; below, growing would bank untested headroom.
BINDS = 0.9
ROUND_MIN, ROUND_MAX = 8, 64  # samples sent under the current limit that a decision needs: half a limit's worth
# A collapse (latency far past the tolerance, or a rejection) is remembered: growth stops short of where it happened,
# for a minute, then that ceiling rises slowly. Without it the law climbs into the same cliff every few seconds.
COLLAPSE = 0.6  # of tolerance * baseline / recent
CEILING_SHARE, CEILING_HOLD_S, CEILING_RISE_PER_S = 0.85, 60.0, 0.02


@dataclass(slots=True)
class GradientState:
    """Memory of the law, JSON-able. slow_start ends at the first cut, or when latency first nears the tolerance.

    ceiling: where growth stops since the last collapse, None before any; ceiling_at: observed seconds when it was set.
    """

    limit: float
    epoch: int = 0
    slow_start: bool = True
    ceiling: float | None = None
    ceiling_at: float = 0.0
    work: WorkState = field(default_factory=WorkState)


class GradientLaw:
    """Steer the limit so that latency stays within `tolerance` of the unloaded one.

    round  = clamp(limit / 2, 8, 64) successes sent under the current limit
    target = clamp(tolerance * baseline / median(round), 0.5, 1) * limit + sqrt(limit)

    In slow start, while latency is below the tolerance, a round multiplies the limit by `ramp`. After the gradient
    limit of Netflix/concurrency-limits; differs: latency per unit of learned work, only samples sent after the last
    move (as Envoy's), a minimum that ages, 429s and 503s cut once an episode.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        state: GradientState | None = None,
        tolerance: float = 1.6,
        ramp: float = 1.5,
        drop_factor: float = 0.7,
    ) -> None:
        if tolerance < 1.0 or ramp < 1.0 or not 0.0 < drop_factor < 1.0:
            raise ConfigError(
                "gradient: tolerance and ramp must be >= 1 and drop_factor between 0 and 1, got"
                f" tolerance={tolerance:g}, ramp={ramp:g}, drop_factor={drop_factor:g}"
            )
        self.bounds, self.tolerance, self.ramp, self.drop_factor = bounds, tolerance, ramp, drop_factor
        self.state = state if state is not None else GradientState(limit=bounds.start)
        self.state.limit = bounds.clamp(self.state.limit)
        self._meter = GradientMeter(self.state.work)
        self._arrived: list[Sample] = []
        self._round: list[float] = []
        self._peak = 0

    def observe(self, observation: Observation) -> None:
        self._arrived.extend(observation.samples)
        self._peak = max(self._peak, observation.in_flight_peak, observation.in_flight)

    def decide(self, *, now: float) -> LimitChange | None:
        arrived, self._arrived = self._arrived, []
        rejected = False
        for sample in arrived:
            ratio = self._meter.observe(sample, now=now)
            if sample.outcome is Outcome.DROPPED and sample.epoch >= self.state.epoch:
                rejected = True
            elif ratio is not None and self._is_of_this_round(sample):
                self._round.append(ratio)
        if rejected:
            self._note_collapse()
            return self._move(self.state.limit * self.drop_factor, "rejected", len(arrived))
        if len(self._round) < min(max(self.state.limit / 2, ROUND_MIN), ROUND_MAX):
            return None
        return self._end_round()

    def _is_of_this_round(self, sample: Sample) -> bool:
        """Sent after the last move: under the same limit, and not before the last cut."""
        return sample.limit == math.floor(self.state.limit) and sample.epoch == self.state.epoch

    def _end_round(self) -> LimitChange | None:
        recent, count = statistics.median(self._round), len(self._round)
        baseline = self._meter.baseline_s
        if baseline is None:
            return None
        limit, gradient = self.state.limit, self.tolerance * baseline / recent
        if gradient < COLLAPSE:
            self._note_collapse()
        if gradient < 1.0:
            self.state.slow_start = False
            target = max(gradient, 0.5) * limit + math.sqrt(limit)
        else:
            target = limit * self.ramp if self.state.slow_start else limit + math.sqrt(limit)
        if target > limit:
            is_used = self._peak >= BINDS * math.floor(limit)
            target = max(min(target, self._ceiling()), limit) if is_used else limit
        reason = "grow" if target >= limit else "collapse" if gradient < COLLAPSE else "queue"
        return self._move(target, reason, count, recent=recent)

    def _note_collapse(self) -> None:
        self.state.ceiling = CEILING_SHARE * self.state.limit
        self.state.ceiling_at = self.state.work.elapsed_s

    def _ceiling(self) -> float:
        """Where growth stops now: infinite before any collapse."""
        if self.state.ceiling is None:
            return math.inf
        age_s = self.state.work.elapsed_s - self.state.ceiling_at
        return self.state.ceiling * (1.0 + CEILING_RISE_PER_S * max(age_s - CEILING_HOLD_S, 0.0))

    def _move(self, target: float, reason: str, count: int, *, recent: float | None = None) -> LimitChange | None:
        old, self.state.limit = self.state.limit, self.bounds.clamp(target)
        self._round, self._peak = [], 0
        if self.state.limit < old:
            self.state.epoch += 1
            self.state.slow_start = False
        if self.state.limit == old:
            return None
        recent = recent if recent is not None else self._meter.recent_s
        baseline = self._meter.baseline_s
        gradient = baseline / recent if baseline is not None and recent else None
        return LimitChange(
            old, self.state.limit, reason, Evidence(baseline, recent, gradient, samples=count, per_work=True)
        )
