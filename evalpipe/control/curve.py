"""Where does more in flight stop getting more done? One curve through what is known of all levels. Pure.

    seconds per unit of work = max(own_s + each_s * n, n / rate)          n in flight

Left of the knee a server that batches takes a little longer for each one more; right of it they queue, or share what
there is, and latency grows in proportion. A server that shares one processor has each_s = 0; one that never saturates
has no knee. All levels speak for the one curve, so that no two noisy ones decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ERROR_LEAST = 0.02  # of a point: the curve is no truer than that
# A knee is one parameter more: it must explain the points better by as much as a deviation of two sigma is unlikely.
KNEE_WORTH = 4.0
STRAIGHT = 1e-9  # of the determinant: all points at one level have no slope


@dataclass(frozen=True, slots=True)
class Point:
    """in_flight, per_work_s: a level. error: one standard deviation of per_work_s, relative."""

    in_flight: float
    per_work_s: float
    error: float

    @property
    def weight(self) -> float:
        return 1.0 / (self.error * self.error + ERROR_LEAST * ERROR_LEAST)


@dataclass(frozen=True, slots=True)
class Curve:
    """See the module. knee: in flight; None where no point lies right of it. is_saturated: none lies left of it."""

    own_s: float
    each_s: float
    knee: float | None = None
    is_saturated: bool = False

    def per_work_s(self, in_flight: float) -> float:
        """Seconds a unit of work takes, left of the knee."""
        return self.own_s + self.each_s * in_flight

    def elasticity(self, in_flight: float) -> float:
        """By how much work/s grow with in flight, left of the knee: 1 in proportion, 0 not at all."""
        return self.own_s / self.per_work_s(in_flight)

    def at_elasticity(self, elasticity: float) -> float:
        """Return the level of that elasticity; infinity where it never falls so low."""
        return self.own_s / self.each_s * (1.0 / elasticity - 1.0) if self.each_s > 0 else math.inf


def fit(points: Sequence[Point]) -> Curve:
    """Return the curve that explains the points best, trying each as the first right of the knee. At least one point.

    points: fewest in flight first.
    """
    tries = [_split(points[:first], points[first:]) for first in range(len(points), -1, -1)]
    return min(tries, key=lambda scored: scored[0])[1]


def _split(left: Sequence[Point], right: Sequence[Point]) -> tuple[float, Curve]:
    """Return how badly the curve with these points on either side of the knee fits, and the curve."""
    own_s, each_s = _line(left) if left else (0.0, 0.0)
    misfit = sum(p.weight * math.log(p.per_work_s / (own_s + each_s * p.in_flight)) ** 2 for p in left)
    if not right:
        return misfit, Curve(own_s, each_s)
    log_rate = _mean([(math.log(p.in_flight / p.per_work_s), p.weight) for p in right])
    misfit += sum(p.weight * (math.log(p.in_flight / p.per_work_s) - log_rate) ** 2 for p in right) + KNEE_WORTH
    rate = math.exp(log_rate)
    if not left:
        return misfit, Curve(0.0, 1.0 / rate, knee=right[0].in_flight, is_saturated=True)
    meet = own_s * rate / (1.0 - each_s * rate) if each_s * rate < 1.0 else math.inf
    return misfit, Curve(own_s, each_s, knee=min(max(meet, left[-1].in_flight), right[0].in_flight))


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Weighted least squares of per_work_s on in_flight, both weights at least 0; relative errors count."""
    weights = [p.weight / (p.per_work_s * p.per_work_s) for p in points]
    s = sum(weights)
    sn = sum(w * p.in_flight for w, p in zip(weights, points, strict=True))
    snn = sum(w * p.in_flight**2 for w, p in zip(weights, points, strict=True))
    sr = sum(w * p.per_work_s for w, p in zip(weights, points, strict=True))
    snr = sum(w * p.in_flight * p.per_work_s for w, p in zip(weights, points, strict=True))
    determinant = s * snn - sn * sn
    if determinant <= STRAIGHT * s * snn:
        return sr / s, 0.0
    each_s = (s * snr - sn * sr) / determinant
    own_s = (sr - each_s * sn) / s
    if each_s < 0.0:
        return sr / s, 0.0
    return (own_s, each_s) if own_s > 0.0 else (0.0, snr / snn)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    return sum(value * weight for value, weight in weighted) / sum(weight for _, weight in weighted)
