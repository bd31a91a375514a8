"""Rates that are spent in lumps: what may go out now, at so much a second. Pure."""

from __future__ import annotations

import math

BURST_S = 1.0  # of the rate: what may gather while nothing is sent. Less than a report takes to arrive would be lost


class Allowance:
    """What is left to spend. It grows by `rate` a second, up to a second's worth and never less than `least`.

    So over any span of T seconds at most rate * T + max(rate, least) are spent. `now`: seconds, monotonic.
    """

    def __init__(self, rate: float, *, left: float, least: float = 1.0) -> None:
        assert rate > 0 and least > 0, (rate, least)
        self.rate, self.left, self.least = rate, left, least
        self._at: float | None = None

    def accrue(self, *, now: float, held: float = 0.0) -> None:
        """Grow. held: what is set aside of it, and does not count against what may gather."""
        grown = self.left + self.rate * (0.0 if self._at is None else max(now - self._at, 0.0))
        self._at = now
        self.left = min(grown, max(self.rate * BURST_S, self.least) + held)

    def spend(self, cost: float) -> None:
        """Take something out; more than is left becomes a debt."""
        self.left -= cost


class Purse:
    """Two allowances by the word of one source, in requests and in tokens; either may be missing.

    cost: tokens that a request is expected to take. A request is paid when it begins; its tokens are set aside while it
    is out, and paid when they were counted.
    """

    def __init__(self) -> None:
        self.requests: Allowance | None = None
        self.tokens: Allowance | None = None

    def bound(self, *, requests: float | None, tokens: float | None, left: float, cost: float) -> None:
        """Set what may be spent a second, None for no bound. left: requests that an allowance begins with."""
        self.requests = _moved(self.requests, requests, left=left)
        self.tokens = _moved(self.tokens, tokens, left=left * cost)

    def rate(self, *, cost: float) -> float | None:
        """Return the requests a second that it allows, None for no bound."""
        rates = [] if self.requests is None else [self.requests.rate]
        return min(rates if self.tokens is None else [*rates, self.tokens.rate / cost], default=None)

    def ready(self, *, lent: int, in_flight: int, cost: float, now: float) -> float:
        """Return how many requests more may begin now, infinity for no bound."""
        ready = math.inf
        if self.requests is not None:
            self.requests.accrue(now=now)
            ready = self.requests.left - lent
        if self.tokens is not None:
            set_aside = cost * (lent + in_flight)
            self.tokens.least = cost
            self.tokens.accrue(now=now, held=set_aside)
            left = self.tokens.left - set_aside
            # a request that takes more than ever gathers must still go, when nothing else does
            is_whole = lent + in_flight == 0 and left >= self.tokens.least
            ready = min(ready, max(left / cost, float(is_whole)))
        return ready

    def begin(self, count: int, *, now: float) -> None:
        """Pay for requests that began."""
        if self.requests is not None:
            self.requests.accrue(now=now)
            self.requests.spend(count)

    def finish(self, tokens: float) -> None:
        """Pay the tokens of requests that ended."""
        if self.tokens is not None:
            self.tokens.spend(tokens)

    def empty(self) -> None:
        """Begin anew with nothing, and no debt of requests."""
        if self.requests is not None:
            self.requests.left = 0.0


def _moved(allowance: Allowance | None, rate: float | None, *, left: float) -> Allowance | None:
    """Return the allowance at another rate: it has what it had; a new one begins with `left`."""
    if rate is None:
        return None
    if allowance is None:
        return Allowance(rate, left=left)
    allowance.rate = rate
    return allowance
