"""The Law protocol: an algorithm that yields the limit. It neither spends it (Limiter) nor shares it (LeaseBook).

A law is pure: `observe` takes what happened, `decide` moves the limit and says why. Its whole memory is one JSON-able
dataclass, so that a warm start, a resumed run and a replay can hand it over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from evalpipe.control.observation import Observation
from evalpipe.errors import ConfigError

#: Reasons a limit moves; one word each (DESIGN section 3).
REASONS = frozenset(
    {"startup", "warm_start", "grow", "hold", "queue", "collapse", "rejected", "outage", "stall", "timeout", "quota"}
    | {"bound", "resume", "manual"}
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers behind a change; None where nothing was measured yet.

    baseline_s, recent_s: latencies as the law judged them, in seconds; per unit of work where per_work. gradient: the
    congestion gradient, baseline over recent per unit of work, unclamped. A law that measures raw latency leaves it to
    ControlCore, whose meter fills in what is missing.
    """

    baseline_s: float | None = None
    recent_s: float | None = None
    gradient: float | None = None
    overdue: int = 0
    tokens_per_s: float | None = None
    samples: int = 0
    state: str = ""
    per_work: bool = False


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One move of the limit. old and new are the law's own real numbers; permits are their floor."""

    old: float
    new: float
    reason: str
    evidence: Evidence = field(default_factory=Evidence)

    def __post_init__(self) -> None:
        assert self.reason in REASONS, self.reason


class LawState(Protocol):
    """What every law's state has: the limit, and how often it was cut."""

    limit: float
    epoch: int


class Law(Protocol):
    """Move one number from what is observed."""

    @property
    def state(self) -> LawState: ...

    def observe(self, observation: Observation) -> None:
        """Take in what was seen since the last call; moves nothing."""

    def decide(self, *, now: float) -> LimitChange | None:
        """Move the limit, at most once; None when it stays. now: seconds, monotonic, never backwards."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a limit may start and stay. Raises ConfigError unless 1 <= min_limit <= start <= max_limit."""

    start: float
    min_limit: float
    max_limit: float

    def __post_init__(self) -> None:
        if self.min_limit < 1:
            raise ConfigError(f"min_limit must be at least 1, got {self.min_limit:g}")
        if self.min_limit > self.max_limit:
            raise ConfigError(
                f"min_limit must be <= max_limit, got min_limit={self.min_limit:g}, max_limit={self.max_limit:g}"
            )
        if not self.min_limit <= self.start <= self.max_limit:
            raise ConfigError(
                f"start must lie between min_limit and max_limit, got start={self.start:g},"
                f" min_limit={self.min_limit:g}, max_limit={self.max_limit:g}"
            )

    def clamp(self, value: float) -> float:
        return min(max(value, self.min_limit), self.max_limit)
