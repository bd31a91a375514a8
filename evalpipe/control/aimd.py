"""Additive increase, multiplicative decrease: the law that learns from rejections alone.

`AimdLaw` is ours: one cut an episode, growth only while the limit binds. `AimdPublishedLaw` is the published form,
kept for comparison: every rejection halves, and growth asks nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError

# Below this share of the permits a success says nothing about one more: it never needed the limit. Not 1.0, because
# workers report in turn and the last permit is often on its way between two of them.
BINDING_SHARE = 0.9


@dataclass(slots=True)
class AimdState:
    """limit: permits as a real number, their floor is granted. epoch: cuts so far, also those the floor swallowed."""

    limit: float
    epoch: int = 0


class AimdLaw:
    """Add `increase` per limit's worth of successes; multiply by `cut` once per episode of rejections.

    An episode is an epoch: what was sent before the last cut says nothing about the limit after it, so such a sample
    neither cuts nor grows. Only rejections cut; a timeout or a reset is no measure of load.
    Raises ConfigError for increase <= 0 or a cut outside (0, 1).
    """

    def __init__(
        self, bounds: Bounds, *, state: AimdState | None = None, increase: float = 1.0, cut: float = 0.5
    ) -> None:
        if not increase > 0:
            raise ConfigError(f"increase must be above 0, got {increase:g}")
        if not 0 < cut < 1:
            raise ConfigError(f"cut must lie between 0 and 1, both excluded, got {cut:g}")
        self.state = state or AimdState(limit=bounds.start)
        self._bounds = bounds
        self._increase = increase
        self._cut = cut
        self._pending: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        """Remember; `decide` reads it."""
        self._pending.append(observation)

    def decide(self, *, now: float) -> LimitChange | None:
        """Take the remembered samples in order; None when the limit is where it was. Time plays no part."""
        old = self.state.limit
        pending, self._pending = self._pending, []
        for observation in pending:
            for sample in observation.samples:
                self._take(sample, observation)
        new = self.state.limit
        if new == old:
            return None
        samples = sum(len(observation.samples) for observation in pending)
        return LimitChange(old, new, "grow" if new > old else "rejected", Evidence(samples=samples))

    def _take(self, sample: Sample, observation: Observation) -> None:
        if self._is_stale(sample):
            return
        if sample.outcome is Outcome.DROPPED:
            self.state.epoch += 1
            self.state.limit = self._bounds.clamp(self.state.limit * self._cut)
        elif sample.outcome is Outcome.OK and self._is_binding(observation):
            self.state.limit = self._bounds.clamp(self.state.limit + self._increase / self.state.limit)

    def _is_stale(self, sample: Sample) -> bool:
        return sample.epoch < self.state.epoch

    def _is_binding(self, observation: Observation) -> bool:
        peak = max(observation.in_flight_peak, observation.in_flight)
        # against whole permits: at a limit of 1.9 there is one, and 0.9 * 1.9 could never be reached
        return peak >= BINDING_SHARE * math.floor(self.state.limit)


class AimdPublishedLaw(AimdLaw):
    """The published form: halve on each rejection, however many belong together; grow whether the limit binds or not.

    Ten rejections of one burst divide the limit by 1,024 (down to the floor): that is the point of comparing.
    """

    def _is_stale(self, sample: Sample) -> bool:
        return False

    def _is_binding(self, observation: Observation) -> bool:
        return True
