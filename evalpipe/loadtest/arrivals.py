"""When requests are sent in open loop: the whole schedule, drawn ahead from one seed, and proofs that it was kept.

One list is drawn in one place and dealt out by index. Drawing in each worker from the same seed, as a well-known tool
does, uses every gap once a worker: its index of dispersion is 9.85 with 10 processes (notes/loadtest.md 0).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evalpipe.errors import ConfigError

ArrivalKind = Literal["poisson", "constant"]

BINS_AT_LEAST = 10  # with fewer, the index of dispersion says nothing
KS_TERMS = 100


@dataclass(frozen=True, slots=True)
class Traffic:
    """How Poisson-like instants were.

    dispersion: variance over mean of the counts in 1 s bins, 1 for a Poisson process; None below ten bins.
    ks_p: chance that exponential gaps look less exponential than these (Kolmogorov-Smirnov against rate_per_s).
    correlation: of each gap with the next, 0 for a Poisson process.
    """

    count: int
    rate_per_s: float
    dispersion: float | None
    ks_p: float
    correlation: float


def schedule(kind: ArrivalKind, *, rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Return the instants in [0, duration_s) at which requests are due, ascending.

    poisson: gaps are exponential of mean 1 / rate, neither cut nor rescaled. The same seed gives the same gaps in units
    of the mean at every rate. constant: one every 1 / rate from 0.5 / rate on. Raises ConfigError.
    """
    if not (rate_per_s > 0 and duration_s > 0 and math.isfinite(rate_per_s * duration_s)):
        raise ConfigError(f"rate and duration must be above 0, got {rate_per_s:g} requests/s for {duration_s:g} s")
    if kind == "constant":
        return [(i + 0.5) / rate_per_s for i in range(round(rate_per_s * duration_s))]
    if kind != "poisson":
        raise ConfigError(f"arrivals must be poisson or constant, got {kind!r}")
    rng = random.Random(f"arrivals/{seed}")
    instants: list[float] = []
    at = rng.expovariate(1.0) / rate_per_s
    while at < duration_s:
        instants.append(at)
        at += rng.expovariate(1.0) / rate_per_s
    return instants


def share_of(instants: Sequence[float], *, worker: int, workers: int) -> Sequence[float]:
    """Return what one of the workers sends: every workers-th instant from its own number (from 0) on."""
    if not 0 <= worker < workers:
        raise ConfigError(f"worker must lie in 0..workers - 1, got {worker} of {workers}")
    return instants[worker::workers]


def look_at(instants: Sequence[float], *, rate_per_s: float, start: float = 0.0, end: float | None = None) -> Traffic:
    """Judge instants (ascending, seconds) in [start, end) against a Poisson process of rate_per_s."""
    end = (instants[-1] if instants else start) if end is None else end
    inside = [at for at in instants if start <= at < end]
    gaps = gaps_of(inside)
    return Traffic(
        count=len(inside),
        rate_per_s=len(inside) / (end - start) if end > start else 0.0,
        dispersion=dispersion(inside, start=start, end=end),
        ks_p=ks_exponential(gaps, mean=1 / rate_per_s),
        correlation=_correlation(gaps),
    )


def gaps_of(instants: Sequence[float]) -> list[float]:
    return [instants[i + 1] - instants[i] for i in range(len(instants) - 1)]


def dispersion(instants: Sequence[float], *, start: float, end: float, bin_s: float = 1.0) -> float | None:
    """Return variance / mean of the counts in whole bins of [start, end); None below ten bins or without a count."""
    bins = int((end - start) / bin_s + 1e-9)
    if bins < BINS_AT_LEAST:
        return None
    counts = [0] * bins
    for at in instants:
        index = math.floor((at - start) / bin_s)
        if 0 <= index < bins:
            counts[index] += 1
    mean = sum(counts) / bins
    return sum((count - mean) ** 2 for count in counts) / (bins - 1) / mean if mean else None


def ks_exponential(gaps: Sequence[float], *, mean: float) -> float:
    """Return the p-value of Kolmogorov-Smirnov's test of gaps against an exponential of known mean; 1 without gaps.

    D = max |F_n(x) - (1 - exp(-x / mean))|, p = Q((sqrt(n) + 0.12 + 0.11 / sqrt(n)) D) with
    Q(t) = 2 sum (-1)^(k-1) exp(-2 k^2 t^2). Source: Stephens, JRSS B 32 (1970).
    """
    n = len(gaps)
    if not n:
        return 1.0
    distance = 0.0
    for i, gap in enumerate(sorted(gaps)):
        expected = 1 - math.exp(-gap / mean)
        distance = max(distance, expected - i / n, (i + 1) / n - expected)
    t = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if t < 0.2:  # the series converges slowly there, and the answer is 1 to ten digits
        return 1.0
    total = sum((1 if k % 2 else -1) * math.exp(-2 * k * k * t * t) for k in range(1, KS_TERMS))
    return min(max(2 * total, 0.0), 1.0)


def _correlation(gaps: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of the gaps; 0 where there is no spread."""
    if len(gaps) < 3:
        return 0.0
    mean = sum(gaps) / len(gaps)
    spread = sum((gap - mean) ** 2 for gap in gaps)
    together = sum((gaps[i] - mean) * (gaps[i + 1] - mean) for i in range(len(gaps) - 1))
    return together / spread if spread else 0.0
