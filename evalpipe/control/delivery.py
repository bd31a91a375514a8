"""Does the work come back as fast as it did? The quick signal of a collapse where only whole answers are seen.

Latencies tell it late: an answer must finish to have one. That answers fail to come is seen at once; but they come in
bursts, so a shortfall counts only over the time one takes, and beyond what chance explains.
"""

from __future__ import annotations

import math
from collections import deque

SIGMAS = 3.5  # a test every tenth of a second must be rarely wrong
SHORT = 0.5  # of what should have come: less is a matter of the slow, exact signal
EXPECTED = 8.0  # answers that should have come at least, whatever one takes
SIZES = 64  # answers whose work tells the spread
BACK_ANSWERS, BACK = 5, 0.7  # so many in a row at this share of the rate: it flows again
KEEP_ANSWERS = 4_096  # in the time of one answer about as many come as are in flight (Little's law): a thousand or so


class Delivery:
    """Work that came back lately. In units of the work model; instants are the law's own."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float]] = deque(maxlen=KEEP_ANSWERS)  # when, work
        self._rtts: deque[float] = deque(maxlen=SIZES)

    def add(self, work: float, rtt_s: float, *, at: float) -> None:
        self._answers.append((at, work))
        self._rtts.append(rtt_s)

    @property
    def rtt_s(self) -> float:
        """Mean latency of the last answers; a second before any."""
        return sum(self._rtts) / len(self._rtts) if self._rtts else 1.0

    @property
    def _life_s(self) -> float:
        """How long the answer takes in which a unit of work comes, on average: a few long ones hold most of it."""
        return sum(rtt_s * rtt_s for rtt_s in self._rtts) / sum(self._rtts)

    def is_short(self, rate: float, *, now: float) -> bool:
        """Tell whether far less came than `rate` units of work a second, over the time an answer takes."""
        if rate <= 0.0 or len(self._answers) < EXPECTED:
            return False
        sizes = [work for _, work in list(self._answers)[-SIZES:]]
        span_s = max(self._life_s, EXPECTED * sum(sizes) / len(sizes) / rate)
        due = rate * span_s
        came = self._since(now - span_s)
        # answers that come at random: the variance of their sum is the mean number of them times the mean square
        deviation = math.sqrt(due * sum(size * size for size in sizes) / sum(sizes))
        return came < SHORT * due and due - came > SIGMAS * deviation

    def is_back(self, rate: float, *, since: float, now: float) -> bool:
        """Tell whether the last answers, all of them after `since`, came nearly at that rate."""
        last = list(self._answers)[-BACK_ANSWERS - 1 :]
        if len(last) <= BACK_ANSWERS or last[0][0] <= since:
            return False
        return sum(work for _, work in last[1:]) >= BACK * rate * (now - last[0][0])

    def _since(self, instant: float) -> float:
        total = 0.0
        for at, work in reversed(self._answers):
            if at <= instant:
                break
            total += work
        return total
