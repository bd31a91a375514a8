"""Where growth stops because a larger limit went wrong: remembered, held, released slowly, disproved.

One that is met again where it was is believed for longer; one that was elsewhere (another tenant came or went), for
less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.92  # of the level that went wrong
HOLD_S, HOLD_LEAST_S, HOLD_MOST_S = 8.0, 2.0, 240.0
RISE_PER_S = 0.02
SAME = 0.08  # two levels this near are one ceiling


@dataclass(slots=True)
class Ceiling:
    """JSON-able. level: in flight when it went wrong, None for no ceiling; at: the law's elapsed seconds then."""

    level: float | None = None
    at: float = 0.0
    hold_s: float = HOLD_S

    def note(self, level: float, *, at: float) -> None:
        """It went wrong at this level."""
        if self.level is not None:
            is_same = abs(level / self.level - 1.0) < SAME
            self.hold_s = min(self.hold_s * 2, HOLD_MOST_S) if is_same else max(self.hold_s / 2, HOLD_LEAST_S)
        self.level, self.at = max(level, 1.0), at

    def doubt(self) -> None:
        """It may not have been the level: hold it only briefly."""
        self.hold_s = HOLD_LEAST_S

    def disprove(self, in_flight: float) -> None:
        """So many were in flight and all was well."""
        if self.level is not None and in_flight > self.level:
            self.level = None

    def bound(self, now: float) -> float:
        """Return the largest limit that may be tried; infinity without a ceiling."""
        if self.level is None:
            return math.inf
        return SHARE * self.level * (1.0 + RISE_PER_S * max(now - self.at - self.hold_s, 0.0))
