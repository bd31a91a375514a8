"""Circuit breaker of one endpoint: when nothing gets through, hold back, try a little, then open up in steps. Pure.

It sees one worker's requests. What counts as a failure of the endpoint, and what a failure costs an item, is decided by
whoever feeds it (runtime/triage.py); how long an outage may last is the driver's matter (endpoint.max_outage_s).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evalpipe.control.recent import RecentCount

OPEN_AFTER = 8  # failures in a row: a handful of resets is normal with some servers
WINDOW_S, MIN_REQUESTS, OPEN_SHARE = 20, 50, 0.5
FIRST_WAIT_S, WAIT_GROWTH, LAST_WAIT_S = 0.5, 1.6, 5.0
#: requests of each step from open to closed: a server that just came up gets no crowd
STEPS = (1, 2, 4, 8)


@dataclass(slots=True)
class Breaker:
    """Closed: everything goes. Open: nothing until the wait is over. Half-open: 1, 2, 4, 8 probes, all must pass.

    Opens at 8 failures in a row, or when at least half of at least 50 requests of the last 20 s failed. A failed probe
    opens it again, for 0.5 s first, then 1.6 times as long each, at most 5 s.
    Each send gets a ticket that its result brings back: results of requests that left before the breaker last opened or
    closed say nothing about now. `now`: seconds, monotonic, one process.
    """

    _round: int = 0  # counts openings and closings; the ticket
    _in_a_row: int = 0
    _requests: RecentCount = field(default_factory=lambda: RecentCount(WINDOW_S))
    _failures: RecentCount = field(default_factory=lambda: RecentCount(WINDOW_S))
    _opened: int = 0  # times since it was last closed
    _probe_at: float = 0.0
    _step: int = 0
    _sent: int = 0  # probes of this step
    _passed: int = 0

    @property
    def is_open(self) -> bool:
        """Open or half-open: the endpoint is not known to work."""
        return self._opened > 0

    def can_send(self, *, now: float) -> bool:
        """Say whether one more request may go."""
        return not self.is_open or (now >= self._probe_at and self._sent < STEPS[self._step])

    def on_send(self) -> int:
        """Count a request and return its ticket."""
        self._sent += self.is_open
        return self._round

    def on_answer(self, ticket: int, *, now: float) -> None:
        """Take in that the endpoint was there, whatever it said."""
        if ticket != self._round:
            return
        if self.is_open:
            self._pass()
            return
        self._in_a_row = 0
        self._requests.add(now=now)

    def on_failure(self, ticket: int, *, now: float, is_evidence: bool = True) -> None:
        """Take in that the endpoint was not there.

        is_evidence False: the item asked for may be the reason, so only a probe counts.
        """
        if ticket != self._round:
            return
        if self.is_open:
            self._open(now)
        elif is_evidence:
            self._in_a_row += 1
            self._requests.add(now=now)
            self._failures.add(now=now)
            if self._in_a_row >= OPEN_AFTER or self._is_half_lost(now):
                self._open(now)

    def validate(self) -> None:
        """Assert that its counts are possible together."""
        assert 0 <= self._passed <= self._sent <= STEPS[self._step] or not self.is_open, self
        assert self.is_open or self._in_a_row < OPEN_AFTER, self

    def _pass(self) -> None:
        self._passed += 1
        if self._passed < STEPS[self._step]:
            return
        self._step, self._sent, self._passed = self._step + 1, 0, 0
        if self._step == len(STEPS):
            self._round += 1
            self._opened = self._step = self._in_a_row = 0
            self._requests.clear()
            self._failures.clear()

    def _open(self, now: float) -> None:
        wait_s = min(FIRST_WAIT_S * WAIT_GROWTH ** min(self._opened, 20), LAST_WAIT_S)
        self._round += 1
        self._opened += 1
        self._probe_at = now + wait_s
        self._step = self._sent = self._passed = 0

    def _is_half_lost(self, now: float) -> bool:
        requests = self._requests.total(now=now)
        return requests >= MIN_REQUESTS and self._failures.total(now=now) >= OPEN_SHARE * requests
