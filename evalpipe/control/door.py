"""Shut after a refusal, one request alone to see whether the server accepts again, then open. Pure.

How long to wait before that one is what the server advised only where its advice counts down, as that of a window does.
An advice that says the same each time, too much, or nothing at all is not what decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_WAIT_S, LAST_WAIT_S = 1.0, 5.0  # before the first probe; between later ones, doubled each, at most
# Two advices mean one instant when they differ by less than this share of the time between them: one that never
# changes differs by all of it, one rounded to seconds by up to one.
AGREES, AGREES_AFTER_S = 0.4, 0.9
LONGEST_WAIT_S = 120.0  # of an advice that counts down
NEEDLESS = 3.0  # an advice so many times longer than it took


@dataclass(slots=True)
class Door:
    """`now`: seconds, monotonic.

    is_closed: nothing may begin but a probe. closed_at: when it was shut. needless_s: what an advice said that was
    disproved, None before any: requests were accepted much sooner.
    """

    is_closed: bool = False
    closed_at: float = 0.0
    needless_s: float | None = None
    _wait_s: float = FIRST_WAIT_S
    _probe_at: float = 0.0
    _begun_at: float | None = None  # of the probe that is out
    _refused_at: float = 0.0
    _ends_at: float | None = None  # the instant that the last advice meant
    _advice_s: float = 0.0  # the longest since it was shut

    def shut(self, *, advice_s: float | None, now: float, wait_s: float = FIRST_WAIT_S, most_s: float = 0.0) -> None:
        """A request was refused. wait_s: before the first probe. most_s: between probes, where that is above the usual.

        While it is shut only the refusal of a probe is news: what was out before may still come back.
        """
        if self.is_closed and self._begun_at is None:
            return
        if self.is_closed:
            self._wait_s = min(2 * self._wait_s, max(LAST_WAIT_S, most_s))
        else:
            self.is_closed, self.closed_at, self._wait_s = True, now, wait_s
            self._ends_at, self._advice_s = None, 0.0
        until = self._agreed_end(advice_s, now)
        self._probe_at = now + self._wait_s if until is None else min(until, now + LONGEST_WAIT_S)
        self._begun_at = None

    def can_probe(self, *, now: float) -> bool:
        """Say whether a request may begin, alone, to show whether the server accepts again."""
        return self.is_closed and self._begun_at is None and now >= self._probe_at

    def on_probe(self, *, now: float) -> None:
        """It has begun."""
        self._begun_at = now

    def open(self, *, patience_s: float, now: float) -> float | None:
        """Open if the probe was accepted, and return since when; None where that is not known or it was not shut.

        patience_s: what was not refused for so long was accepted.
        """
        at = self._begun_at
        if not self.is_closed or at is None or now - at < patience_s:
            return None
        self.is_closed, self._begun_at = False, None
        if self._advice_s > NEEDLESS * max(at - self.closed_at, FIRST_WAIT_S):
            self.needless_s = self._advice_s
        return at

    def _agreed_end(self, advice_s: float | None, now: float) -> float | None:
        """Return when the server will accept again, as two refusals in a row said; None where they did not agree."""
        is_usable = advice_s is not None and math.isfinite(advice_s) and advice_s > 0
        ends_at = now + advice_s if advice_s is not None and is_usable else None
        before, between_s = self._ends_at, now - self._refused_at
        self._ends_at, self._refused_at = ends_at, now
        if ends_at is None:
            return None
        self._advice_s = max(self._advice_s, ends_at - now)
        if before is None or between_s < AGREES_AFTER_S or abs(ends_at - before) >= AGREES * between_s:
            return None
        return ends_at
