"""What is known of a quota before anything is refused: what the user declared, and what responses tell. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evalpipe.errors import ConfigError
from evalpipe.records import Packed


@dataclass(frozen=True, slots=True)
class Quota:
    """What may be sent a minute: rpm requests, tpm tokens (prompt and output). None: not declared.

    share: the fraction of the quota that this run may use; the rest is left to others with the same key.
    Raises ConfigError for a rate that is not above 0 and finite, or a share outside (0, 1].
    """

    rpm: float | None = None
    tpm: float | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("rpm", self.rpm), ("tpm", self.tpm)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a finite number above 0, or not given, got {value!r}")
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must lie above 0 and at most at 1, got {self.share!r}")

    def per_s(self, per_minute: float | None, *, of_it: float = 1.0) -> float | None:
        """Return this run's share of a quota, or so much of it, a second."""
        return None if per_minute is None else of_it * self.share * per_minute / 60


UNDECLARED = Quota()


@dataclass(frozen=True, slots=True)
class Meter(Packed):
    """One quota as a response told of it. limit: the whole; left: of it; reset_s: seconds until it is whole again.

    limit, left: requests or tokens, at least 0; None where not told. reset_s: at least 0, None where not told.
    """

    limit: float | None = None
    left: float | None = None
    reset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Told(Packed):
    """What one response said of quotas. requests, tokens: None where its headers say nothing of them."""

    requests: Meter | None = None
    tokens: Meter | None = None
