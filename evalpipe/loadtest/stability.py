"""Whether a server keeps up, judged while the test runs: three signs, of which two must agree.

A single sign is not enough: in flight rises in any ramp, few deliveries may be chance, and latencies wander near the
knee. A straight line through the backlog alone misses a load of exactly the capacity (it grows as the square root of
time); see notes/loadtest.md 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalpipe.loadtest.records import Request, Window

BLOCKS = 8
MIN_REQUESTS = 100
QUARTERS = 4
DELIVERED_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Stability:
    """The signs of a server that does not keep up. growth_per_s: of requests in flight.

    is_growing: they grow, with a lower 95 % bound above 0, and by a quarter of their mean. is_behind: fewer end than
    begin, delivered / offered < 1 - 3 / sqrt(n). is_slowing: mean TTFT rises from each quarter of the window to the
    next.
    """

    growth_per_s: float = 0.0
    delivered_share: float = 1.0
    is_growing: bool = False
    is_behind: bool = False
    is_slowing: bool = False

    @property
    def is_stable(self) -> bool:
        return self.is_growing + self.is_behind + self.is_slowing < 2


def stability(requests: Sequence[Request], window: Window, *, now: float) -> Stability:
    """Judge the requests of an open loop in the window; stable while fewer than 100 were offered."""
    offered = [request for request in requests if window.holds(request.scheduled_at)]
    if len(offered) < MIN_REQUESTS:
        return Stability()
    delivered = sum(r.is_ok and window.holds(r.ended_at or math.inf) for r in requests)
    share = delivered / len(offered)
    growth, low = _growth(requests, window)
    return Stability(
        growth_per_s=growth,
        delivered_share=share,
        is_growing=low > 0 and growth * window.length_s > sum(_levels(requests, window)) / BLOCKS / 4,
        is_behind=share < 1 - DELIVERED_SIGMAS / math.sqrt(len(offered)),
        is_slowing=_is_rising([_mean_ttft(offered, part, now) for part in _parts(window, QUARTERS)]),
    )


def _growth(requests: Sequence[Request], window: Window) -> tuple[float, float]:
    """Return the slope of the in-flight level in requests/s and its lower 95 % bound (least squares over blocks)."""
    levels = _levels(requests, window)
    step = window.length_s / BLOCKS
    times = [(i + 0.5) * step for i in range(BLOCKS)]
    middle, mean = sum(times) / BLOCKS, sum(levels) / BLOCKS
    spread = sum((t - middle) ** 2 for t in times)
    slope = sum((t - middle) * (level - mean) for t, level in zip(times, levels, strict=True)) / spread
    rest = sum((level - mean - slope * (t - middle)) ** 2 for t, level in zip(times, levels, strict=True))
    error = math.sqrt(rest / (BLOCKS - 2) / spread)
    return slope, slope - 2.45 * error  # Student's t of 6 degrees


def _levels(requests: Sequence[Request], window: Window) -> list[float]:
    """Return the mean number in flight in each block of the window."""
    step = window.length_s / BLOCKS
    area = [0.0] * BLOCKS
    for request in requests:
        end = window.end if request.ended_at is None else min(request.ended_at, window.end)
        begin = max(request.sent_at, window.start)
        block = int((begin - window.start) / step)
        while begin < end and block < BLOCKS:
            until = min(end, window.start + (block + 1) * step)
            area[block] += until - begin
            begin, block = until, block + 1
    return [each / step for each in area]


def _parts(window: Window, count: int) -> list[Window]:
    step = window.length_s / count
    return [Window(window.start + i * step, window.start + (i + 1) * step) for i in range(count)]


def _mean_ttft(offered: Sequence[Request], part: Window, now: float) -> float:
    ages = [
        (now if request.first_at is None else request.first_at) - request.scheduled_at
        for request in offered
        if part.holds(request.scheduled_at) and not request.is_error
    ]
    return sum(ages) / len(ages) if ages else math.nan


def _is_rising(means: Sequence[float]) -> bool:
    return all(means[i] < means[i + 1] for i in range(len(means) - 1))
