"""How often something happened lately: a count over whole seconds that forgets. Pure."""

from __future__ import annotations

from collections import deque


class RecentCount:
    """Counts events of the last `window_s` seconds, the current one included. `now`: seconds, monotonic."""

    def __init__(self, window_s: int) -> None:
        self._window_s = window_s
        self._seconds: deque[list[int]] = deque()  # [second, events in it], oldest first
        self._total = 0  # sum over _seconds: asked before each send

    def add(self, *, now: float, count: int = 1) -> None:
        """Count one event, or several; a negative count takes back what was counted too early."""
        self._forget(now)
        if not self._seconds or self._seconds[-1][0] != int(now):
            self._seconds.append([int(now), 0])
        self._seconds[-1][1] += count
        self._total += count

    def total(self, *, now: float) -> int:
        """Return how many events the window holds."""
        self._forget(now)
        return self._total

    def clear(self) -> None:
        self._seconds.clear()
        self._total = 0

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= int(now) - self._window_s:
            self._total -= self._seconds.popleft()[1]
