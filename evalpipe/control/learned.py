"""The rate at which a server accepts requests, learned from its refusals alone. Pure.

Between two moments at which a quota is used up, a server accepts exactly what the quota is refilled by: a bucket by its
rate, a window by its whole once a period. So accepted / elapsed from one such moment to the next is the rate. When it
is known, clean time makes it grow, more and more, until the next refusal: there may be more to have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from evalpipe.control.recent import RecentCount

MARGIN = 0.97  # of an estimate: what it errs by, and room for the bucket to fill again
# An estimate from less says too little: the count alone errs by one at each end.
ENOUGH_S, ENOUGH = 4.0, 8
TOO_FAST = 0.85  # refused before there was enough
# What a full bucket gave is in the first estimate, so it is too high by an unknown factor: half of it, growing fast.
SEARCH_FROM, SEARCH_PER_S = 0.5, 0.05
HOLD_S, HOLD_MOST_S = 15.0, 120.0  # clean time before growth; doubled each time that an estimate is confirmed
GROW_PER_S, GROW_DOUBLES_S, GROW_MOST_PER_S = 0.001, 20.0, 0.02
CONFIRMED = 0.1  # an estimate so near the one before
WINDOW_S, LONG_S = 60.0, 4.0  # the usual period of a quota; used up for so long, it was no bucket
LEAST_PER_S = 1 / 60
# After a refusal that may have been for a quota: half as fast as so far, doubled every second for so long. If it was
# one, it is met again with few out.
CAUTION_S = 3.0
# A quota gives the same rate each time it is met. One that seems to shrink each time, by so much in so many, is none:
# who refuses does so whatever the rate, and slower only takes longer. For so long nothing is believed of quotas then,
# and twice as long the next time.
FALLS, FALLEN, REFUTED_S, REFUTED_MOST_S = 3, 0.6, 120.0, 3600.0


@dataclass(slots=True)
class Learned:
    """rate: requests a second, None before a quota was proven. is_suspected: a refusal may have been for one.

    The owner tells of every request that begins and every one that is refused, whatever for. `now`: seconds, monotonic.
    """

    rate: float | None = None
    is_suspected: bool = False
    is_searching: bool = False
    _since: float | None = None  # of the estimate under way
    _accepted: int = 0  # since then
    _has_estimate: bool = False
    _is_used_up: bool = False
    _clean_s: float = 0.0
    _hold_s: float = HOLD_S
    _falls: int = 0  # estimates in a row that were lower
    _top: float = 0.0  # the rate before the first of them
    _refuted_s: float = REFUTED_S
    _refuted_until: float = -math.inf
    _caution: tuple[float, float] | None = None  # a rate, and since when
    _minute: RecentCount = field(default_factory=lambda: RecentCount(int(WINDOW_S)))

    @classmethod
    def known(cls, rate: float) -> Learned:
        """Return what goes on from a rate that was learned before, by another controller."""
        return cls(rate=rate, _has_estimate=True)

    @property
    def is_cautious(self) -> bool:
        """A quota is suspected and not proven."""
        return self.rate is None and self._caution is not None

    def is_refuted(self, *, now: float) -> bool:
        """Refusals came whatever the rate: they are no quota's."""
        return now < self._refuted_until

    def bound(self, *, now: float) -> float | None:
        """Return the requests a second that may begin, None for no bound."""
        if self._caution is None or self.rate is not None:
            return self.rate
        rate, since = self._caution
        if now - since >= CAUTION_S:
            self._caution = None
            return None
        return rate * math.exp2(now - since)

    def on_begun(self, count: int, *, now: float) -> None:
        """So many requests went out; they are taken as accepted until they are refused."""
        self._since = now if self._since is None else self._since
        self._accepted += count
        self._minute.add(now=now, count=count)

    def on_refused(self, count: int, *, now: float) -> None:
        """So many of those were refused, whenever they had begun."""
        self._accepted = max(self._accepted - count, 0)
        self._minute.add(now=now, count=-count)

    def prove(self, *, now: float) -> None:
        """A request was refused for a quota, so it is used up: from now on there is a rate."""
        self._is_used_up = True
        if self.rate is None:
            self._set(self._rate_so_far(now))

    def on_opened(self, at: float, *, closed_s: float) -> None:
        """The server accepts again since `at`. If a quota was used up, it is now being refilled."""
        was_suspected, self.is_suspected = self.is_suspected, False
        was_used_up, self._is_used_up = self._is_used_up, False
        if not was_used_up or self.rate is None or self._since is None:
            self._caution = (SEARCH_FROM * self._rate_so_far(at), at) if was_suspected else None
            return
        self._clean_s = 0.0
        before = self.rate
        self._take(at, closed_s=closed_s)
        self._doubt(before, now=at)

    def _take(self, at: float, *, closed_s: float) -> None:
        """Estimate from what was accepted since the quota was used up before."""
        assert self.rate is not None and self._since is not None
        seconds = at - self._since
        if self._has_estimate and (seconds < ENOUGH_S or self._accepted < ENOUGH):
            self._set(TOO_FAST * self.rate)
            return
        estimate = self._rate_so_far(at)
        is_window = closed_s >= LONG_S
        if is_window and closed_s < WINDOW_S:
            estimate = max(estimate, self._minute.total(now=at) / WINDOW_S)
        self._judge(estimate, is_whole=self._has_estimate or is_window, seconds=seconds)
        self._since, self._accepted = at, 0

    def advance(self, seconds: float) -> None:
        """Live through some seconds in which this rate held back and nothing was refused."""
        if self.rate is None:
            return
        self._clean_s += seconds
        if self.is_searching:
            self._set(self.rate * (1.0 + SEARCH_PER_S * seconds))
        elif self._clean_s > self._hold_s:
            speed = min(GROW_PER_S * 2.0 ** ((self._clean_s - self._hold_s) / GROW_DOUBLES_S), GROW_MOST_PER_S)
            self._set(self.rate * (1.0 + speed * seconds))

    def _rate_so_far(self, now: float) -> float:
        elapsed_s = now - self._since if self._since is not None else 0.0
        return max(self._accepted, 1) / max(elapsed_s, 1.0)

    def _doubt(self, before: float, *, now: float) -> None:
        """Give the quota up where meeting it again and again only makes it smaller. before: the rate until now."""
        assert self.rate is not None
        if self.is_searching or self.rate >= (1.0 - CONFIRMED / 2) * before:
            self._falls = 0
            return
        self._top = before if self._falls == 0 else self._top
        self._falls += 1
        if self._falls >= FALLS and self.rate < FALLEN * self._top:
            self.rate, self._has_estimate, self._caution = None, False, None
            self._falls, self._refuted_until = 0, now + self._refuted_s
            self._refuted_s = min(2 * self._refuted_s, REFUTED_MOST_S)

    def _judge(self, estimate: float, *, is_whole: bool, seconds: float) -> None:
        """Take an estimate in. is_whole: it holds no burst of a bucket that was full when it began."""
        assert self.rate is not None
        if not is_whole:
            self._has_estimate = self.is_searching = True
            self._set(SEARCH_FROM * estimate)
            return
        is_confirmed = not self.is_searching and abs(MARGIN * estimate / self.rate - 1.0) < CONFIRMED
        self._hold_s = min(2 * self._hold_s, HOLD_MOST_S) if is_confirmed else HOLD_S
        weight = 1.0 if self.is_searching or not self._has_estimate else seconds / (seconds + ENOUGH_S)
        self._set(self.rate + weight * (MARGIN * estimate - self.rate))
        self._has_estimate, self.is_searching = True, False

    def _set(self, rate: float) -> None:
        self.rate = max(rate, LEAST_PER_S)
