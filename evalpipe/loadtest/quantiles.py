"""Quantiles that know what they did not see: censored values, correlated values, and too few values.

A request that had no first token when the test stopped took longer than its age. Leaving it out, as most tools do,
makes a collapse look fast; it is counted as "longer than" (Kaplan and Meier, JASA 53, 1958).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
CONFIDENCE = 0.95
MIN_BLOCKS = 8  # below, the spread of block means says nothing about correlation


@dataclass(frozen=True, slots=True)
class Value:
    """One latency. at_s: seconds on the time axis when it began. is_open: it was still running, so it took longer."""

    at_s: float
    seconds: float
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Quantile:
    """seconds, with a 95 % interval. is_open: at least so long, the rest had not ended; high None: no upper bound."""

    seconds: float
    low: float
    high: float | None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Spread:
    """How one kind of latency is spread. mean_s: of the values that ended. open_count: of those that had not."""

    count: int
    open_count: int = 0
    mean_s: float = math.nan
    deviation_s: float = math.nan
    by_percentile: Mapping[float, Quantile] = field(default_factory=dict)

    def seconds(self, percentile: float) -> float:
        """Return a percentile in seconds; nan where there is no value."""
        found = self.by_percentile.get(percentile)
        return math.nan if found is None else found.seconds


def spread(values: Sequence[Value], *, block_s: float = 5.0) -> Spread:
    """Return the quantiles of the values, each with an interval from order statistics.

    The interval's half-width in rank is z sqrt(p (1 - p) D / n), with D the design effect: latencies of neighbours in
    time resemble each other, so n of them say less than n independent ones. block_s: neighbours, at least 3 latencies.
    """
    if not values:
        return Spread(0)
    closed = [value.seconds for value in values if not value.is_open]
    curve = _survival(values)
    return Spread(
        count=len(values),
        open_count=len(values) - len(closed),
        mean_s=sum(closed) / len(closed) if closed else math.nan,
        deviation_s=_deviation(closed),
        by_percentile={p: _quantile(curve, values, share=p / 100, block_s=block_s) for p in PERCENTILES},
    )


def _survival(values: Sequence[Value]) -> list[tuple[float, float, bool]]:
    """Return (seconds, share of all at or below, is_open) of each value, ascending: Kaplan and Meier's estimate."""
    left, alive = len(values), 1.0
    curve = []
    for value in sorted(values, key=lambda value: (value.seconds, value.is_open)):
        if not value.is_open:
            alive *= (left - 1) / left
        curve.append((value.seconds, 1 - alive, value.is_open))
        left -= 1
    return curve


def _quantile(
    curve: Sequence[tuple[float, float, bool]], values: Sequence[Value], *, share: float, block_s: float
) -> Quantile:
    seconds, is_open = _at(curve, share)
    effect = design_effect([(value.at_s, value.seconds > seconds or value.is_open) for value in values], block_s)
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    half = z * math.sqrt(share * (1 - share) * effect / len(values))
    low, _ = _at(curve, max(share - half, 0.0))
    high, is_beyond = _at(curve, share + half)
    return Quantile(seconds, low, None if is_beyond or share + half >= 1 else high, is_open)


def _at(curve: Sequence[tuple[float, float, bool]], share: float) -> tuple[float, bool]:
    """Return the smallest seconds with at least this share at or below; (the largest, True) where there is none."""
    low, high = 0, len(curve)
    while low < high:
        middle = (low + high) // 2
        if curve[middle][1] >= share - 1e-12:
            high = middle
        else:
            low = middle + 1
    return (curve[-1][0], True) if low == len(curve) else (curve[low][0], False)


def design_effect(flags: Sequence[tuple[float, bool]], block_s: float) -> float:
    """Return how many times more the share of True varies between blocks of time than with independent flags.

    flags: (instant, flag). At least 1: blocks that agree by chance prove nothing. 1 below eight blocks.
    """
    if not flags:
        return 1.0
    blocks: dict[int, list[int]] = {}
    for at, flag in flags:
        counts = blocks.setdefault(math.floor(at / block_s), [0, 0])
        counts[0] += 1
        counts[1] += flag
    n, total = len(flags), sum(count for _, count in blocks.values())
    p = total / n
    if len(blocks) < MIN_BLOCKS or not 0 < p < 1:
        return 1.0
    between = sum((count - size * p) ** 2 for size, count in blocks.values()) * len(blocks) / (len(blocks) - 1)
    return max(between / (n * p * (1 - p)), 1.0)


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
