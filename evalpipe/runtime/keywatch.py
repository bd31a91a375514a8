"""Is the key refused for good? Pure: a rotated key or one bad replica must not end a run that worked.

Before any answer, three refusals in a row do. After one, sends pause at the first refusal and single probes follow;
three that are refused, over twenty seconds, end it. The endpoint reads the key again at each refusal.
"""

from __future__ import annotations

REFUSALS_AT_ONCE = 3
#: seconds before each probe, 20 in all: a key is rotated in a moment, a file takes some seconds to reach every host
PROBE_WAITS_S = (1.0, 6.0, 13.0)


class KeyWatch:
    """Feed it each result with the ticket of its send; ask it before each send. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._round = 0  # counts pauses and their ends; the ticket
        self._has_worked = False
        self._refused = 0  # in a row before any answer; probes since the pause
        self._is_paused = False
        self._is_probing = False
        self._probe_at = 0.0

    def can_send(self, *, now: float) -> bool:
        """Say whether one more request may go: always, or one probe at a time when its turn has come."""
        return not self._is_paused or (not self._is_probing and now >= self._probe_at)

    def on_send(self) -> int:
        self._is_probing = self._is_paused
        return self._round

    def on_answer(self, ticket: int) -> None:
        """The key was taken; what left before the pause was sent with a key that may be gone."""
        self._has_worked = True
        if ticket == self._round:
            self._refused = 0
            if self._is_paused:
                self._is_paused = self._is_probing = False
                self._round += 1

    def on_failure(self, ticket: int, *, now: float) -> None:
        """Something else went wrong, which says nothing about the key: a probe is made again."""
        if self._is_paused and ticket == self._round:
            self._is_probing = False
            self._probe_at = now + PROBE_WAITS_S[0]

    def on_refusal(self, ticket: int, *, now: float) -> bool:
        """The server refused the key. Return whether that is final."""
        if ticket != self._round:
            return False
        if not self._has_worked:
            self._refused += 1
            return self._refused >= REFUSALS_AT_ONCE
        if self._is_paused:
            self._refused += 1
        else:
            self._is_paused, self._refused = True, 0
            self._round += 1
        self._is_probing = False
        if self._refused >= len(PROBE_WAITS_S):
            return True
        self._probe_at = now + PROBE_WAITS_S[self._refused]
        return False
