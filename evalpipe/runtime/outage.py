"""Is the endpoint gone? A worker's own view: many failures in a row, no success in between. Pure.

While it is out, one request at a time probes it and no item's attempts are spent: a server that restarts must not turn
what is left of a dataset into failures. How long an outage may last is the driver's matter (endpoint.max_outage_s).
"""

from __future__ import annotations

#: kinds that a server which is down or restarting answers with
KINDS = frozenset({"connect_failed", "reset", "server_error", "timeout"})
OUT_AFTER = 8  # in a row: a handful of resets is normal with some servers
FIRST_PROBE_S, PROBE_GROWTH, LAST_PROBE_S = 0.5, 1.6, 5.0


class OutageWatch:
    """Feed it each outcome; ask it before each send."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._probe_at = 0.0

    @property
    def is_out(self) -> bool:
        return self._in_a_row >= OUT_AFTER

    def on_answer(self) -> None:
        """The endpoint answered, whatever it said."""
        self._in_a_row = 0

    def on_failure(self, kind: str, *, now: float) -> None:
        if kind not in KINDS:
            return
        self._in_a_row += 1
        probes = min(self._in_a_row - OUT_AFTER, 20)
        self._probe_at = now + min(FIRST_PROBE_S * PROBE_GROWTH ** max(probes, 0), LAST_PROBE_S)

    def can_send(self, *, now: float, running: int) -> bool:
        """Say whether a request may go: always, or one probe at a time when its turn has come."""
        return not self.is_out or (running == 0 and now >= self._probe_at)
