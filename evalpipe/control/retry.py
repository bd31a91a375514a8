"""When to try again, and how many retries a run may spend. Pure: the caller waits, and releases its permit before.

Rejections that pause an item without spending its attempts are the failure table's matter, not this module's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from evalpipe.control.recent import RecentCount
from evalpipe.errors import ConfigError

# Past this the doubling has long met any sensible cap, and 2**attempt would leave the floats.
MAX_DOUBLINGS = 30
RETRY_AFTER_JITTER = 0.1  # of what was asked: enough to spread a crowd that was told the same second
# One item waits no longer for what one answer asked: whether the server accepts again, and how often, is the pacer's to
# find out, and it holds back all of them. A run must not end with one item that a server told to come back in an hour.
MAX_RETRY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Full-jitter exponential backoff that obeys Retry-After.

        delay = uniform(0, min(cap_s, base_s * 2**(attempt - 1)))      the server said nothing
        delay = asked + uniform(0, base_s + 0.1 * asked)               it asked, at most max_retry_after_s are believed

    After "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
    Raises ConfigError when max_attempts < 1, base_s <= 0, cap_s < base_s or max_retry_after_s < 0.
    """

    max_attempts: int = 6
    base_s: float = 0.5
    cap_s: float = 60.0
    max_retry_after_s: float = MAX_RETRY_AFTER_S

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not 0 < self.base_s <= self.cap_s:
            raise ConfigError(f"base_s must be above 0 and <= cap_s, got base_s={self.base_s:g}, cap_s={self.cap_s:g}")
        if not self.max_retry_after_s >= 0:
            raise ConfigError(f"max_retry_after_s must be at least 0, got {self.max_retry_after_s:g}")

    def can_retry(self, attempt: int) -> bool:
        """Tell whether one more may follow attempt number `attempt` (from 1)."""
        return attempt < self.max_attempts

    def delay(self, attempt: int, retry_after_s: float | None, rng: random.Random) -> float:
        """Return the seconds to wait after attempt number `attempt` (from 1) failed.

        retry_after_s: what the server asked for, None when it did not; a negative or NaN wish counts as 0.
        """
        if retry_after_s is None:
            doublings = min(max(attempt, 1) - 1, MAX_DOUBLINGS)
            return rng.uniform(0.0, min(self.cap_s, self.base_s * 2.0**doublings))
        # this order of arguments turns NaN into 0
        asked_s = min(self.max_retry_after_s, max(0.0, retry_after_s))
        return asked_s + rng.uniform(0.0, self.base_s + RETRY_AFTER_JITTER * asked_s)


@dataclass(slots=True)
class RetryBudget:
    """Keep a run from multiplying its load while a server is down.

        retries in the window <= ratio * requests in the window + min_per_s * window_s

    Counted in whole seconds, the current one included. After Finagle's RetryBudget: 20 % and 10 a second over 10 s.
    A budget shared out to n workers gives each min_per_s / n. `now`: seconds, monotonic, one process.
    Raises ConfigError when ratio or min_per_s is negative, or window_s < 1.
    """

    ratio: float = 0.2
    min_per_s: float = 10.0
    window_s: int = 10
    _requests: RecentCount = field(init=False, repr=False)
    _retries: RecentCount = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.ratio >= 0 and self.min_per_s >= 0):
            raise ConfigError(
                f"ratio and min_per_s must be at least 0, got ratio={self.ratio:g}, min_per_s={self.min_per_s:g}"
            )
        if self.window_s < 1:
            raise ConfigError(f"window_s must be at least 1 second, got {self.window_s}")
        self._requests, self._retries = RecentCount(self.window_s), RecentCount(self.window_s)

    def deposit(self, *, now: float) -> None:
        """Count one first attempt: it pays for `ratio` of a retry."""
        self._requests.add(now=now)

    def withdraw(self, *, now: float) -> bool:
        """Spend one retry; False when there is none left: wait and ask again, do not give up the item."""
        if self.balance(now=now) < 1:
            return False
        self._retries.add(now=now)
        return True

    def balance(self, *, now: float) -> float:
        """Return the retries that may still be sent now; negative after the requests that paid have left the window."""
        bought = self.ratio * self._requests.total(now=now) + self.min_per_s * self.window_s
        # rounded: 0.2 * 15 must buy three retries whatever the floats make of it
        return round(bought - self._retries.total(now=now), 9)
