"""The rate that responses tell of, where a server says what is left of a quota. Tried before it is believed. Pure.

Two kinds of quota tell the same three numbers and mean different things. A window begins anew at an instant that stays
where it is; until then what is left may go. A bucket says when it would be full, an instant that moves with us; it is
refilled by (limit - left) / reset a second.
"""

from __future__ import annotations

from dataclasses import dataclass

from evalpipe.control.quota import Meter

MARGIN = 0.97  # of what is told: what is out may not be in it yet
SAME_INSTANT, APART_S = 0.4, 1.0  # two tellings mean one instant: they differ by less than so much of the time between
HALF = 0.5  # of a bucket left: more needs no pace, and says little about how fast it is refilled
# Some headers are made up. What no refusal has borne out yet is tried twice as fast every so many seconds, and once it
# proved so many times too low, it is heard no more.
DOUBLES_S, FALSE_ABOVE = 8.0, 16.0
LONGEST_S = 20.0  # between two requests, whatever is told


@dataclass(slots=True)
class Hint:
    """One quota as it was told last, in its unit: requests or tokens. `now`: seconds, monotonic.

    is_window: None until two tellings could be compared. boost: how many times faster than told it goes. is_proven:
    something was refused while this held back.
    """

    is_window: bool | None = None
    boost: float = 1.0
    is_proven: bool = False
    _limit: float = 0.0
    _left: float = 0.0
    _reset_s: float = 0.0
    _at: float | None = None
    _period_s: float = 0.0

    @property
    def is_false(self) -> bool:
        return self.boost > FALSE_ABOVE

    def hear(self, meter: Meter, *, now: float) -> None:
        """Take in what a response told; one that leaves out a number says nothing."""
        limit, left, reset_s = meter.limit, meter.left, meter.reset_s
        if limit is None or left is None or reset_s is None or limit <= 0:
            return
        if self._at is not None and now - self._at < APART_S:
            self._left = min(self._left, left)  # answers that come together are in no order
            return
        if self._at is not None:
            moved_s = abs(now + reset_s - (self._at + self._reset_s))
            self.is_window = moved_s < SAME_INSTANT * (now - self._at)
        self._limit, self._left, self._reset_s, self._at = limit, min(left, limit), reset_s, now
        self._period_s = max(self._period_s, reset_s)

    def advance(self, seconds: float) -> None:
        """Live through some seconds in which this held back and nothing was refused."""
        if not self.is_proven:
            self.boost *= 2.0 ** (seconds / DOUBLES_S)

    def prove(self) -> None:
        """A request was refused for its quota: what was told is not made up."""
        self.boost, self.is_proven = 1.0, True

    def rate(self, *, cost: float, now: float) -> float | None:
        """Return what may be spent a second, above 0; None where nothing is told that bounds it. cost: of a request."""
        if self._at is None or self.is_false:
            return None
        told = self._told(self._at + self._reset_s - now)
        return None if told is None else self.boost * max(MARGIN * told, cost / LONGEST_S)

    def _told(self, rest_s: float) -> float | None:
        """rest_s: until the instant that was told last."""
        if self.is_window and rest_s <= 0:  # it has begun anew, and no response has told of it
            return self._limit / max(self._period_s, 1.0)
        if not self.is_window and self._left >= HALF * self._limit:
            return None
        if self.is_window is False:
            return (self._limit - self._left) / max(self._reset_s, 0.001)
        return self._left / max(rest_s, 1.0)
