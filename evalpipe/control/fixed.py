"""The constant law: the yardstick of a sweep, and what `--concurrency N` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from evalpipe.control.law import Bounds, LimitChange
from evalpipe.control.observation import Observation


@dataclass(slots=True)
class FixedState:
    """limit: permits, never moved. epoch: cuts so far, always 0 in a run that began with this law."""

    limit: float
    epoch: int = 0


class FixedLaw:
    """Stay at the start, whatever happens."""

    def __init__(self, bounds: Bounds, *, state: FixedState | None = None) -> None:
        self.state = state or FixedState(limit=bounds.start)

    def observe(self, observation: Observation) -> None:
        """Learn nothing."""

    def decide(self, *, now: float) -> LimitChange | None:
        """Return None: the limit never moves."""
        return None
