"""What a 429 means: too much at once for a busy server, a hard cap on what may be in flight, or a used-up quota. Pure.

A queue and a cap are the limit's matter. A quota is not: fewer in flight send as many requests a minute, so a cut would
treat the wrong variable. Servers say little that tells them apart, so what they do decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from evalpipe.control.observation import Sample

STUCK_LEAST, STUCK_SHARE = 2.0, 0.1  # so much without progress is a queue
CONGESTED = 0.6  # latency per unit of work, baseline over recent: below, the server is busy
#: Refused at clearly fewer in flight than were accepted lately: it was no cap. A neighbour moves a cap by some.
BELOW, LATELY_S = 0.6, 30.0
WINDOW_ADVICE_S = 5.0  # advice to wait so long is about a window or a day, not about a queue that drains


class Cause(Enum):
    OVERLOAD = "the server is busy"
    CAP = "so many may not be in flight"
    QUOTA = "a quota is used up"


@dataclass(slots=True)
class Refusals:
    """Judges refusals one after the other. accepted: most in flight at which a request was accepted lately."""

    accepted: int = 0
    _before: int = 0  # the same of the span before this one
    _since: float = 0.0

    def note_accepted(self, found: int, *, now: float) -> None:
        """A request was answered that had so many in flight when it began, itself included."""
        if now - self._since > LATELY_S / 2:
            self._before, self.accepted, self._since = self.accepted, 0, now
        self.accepted = max(self.accepted, found)

    def judge(self, sample: Sample, *, stuck: int, gradient: float | None, is_paced: bool) -> Cause:
        """Say why this request was refused, which began after the last reaction to a refusal.

        stuck: requests without progress, at all workers. gradient: the congestion gradient, None while unknown.
        is_paced: a quota is known, so a refusal by an idle server is most likely its work.
        """
        found = sample.in_flight_at_send  # itself included; 0 where nobody told
        if sample.kind != "rate_limited":
            return Cause.OVERLOAD
        if stuck > max(STUCK_LEAST, STUCK_SHARE * found):
            return Cause.OVERLOAD
        is_long = sample.retry_after_s is not None and sample.retry_after_s >= WINDOW_ADVICE_S
        if is_paced or is_long or found == 1:
            return Cause.QUOTA
        if gradient is not None and gradient < CONGESTED:
            return Cause.OVERLOAD
        return Cause.QUOTA if 0 < found < BELOW * max(self.accepted, self._before) else Cause.CAP
