"""The best non-decreasing fit, and where it crosses a level. More load never breaks fewer limits but by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pool_adjacent(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing values nearest to the given ones in weighted least squares.

    Pool adjacent violators (Ayer et al., Ann. Math. Stat. 26, 1955). Weights above 0.
    """
    pools: list[tuple[float, float, int]] = []  # value, weight, length
    for value, weight in zip(values, weights, strict=True):
        length = 1
        while pools and pools[-1][0] >= value:
            before, its_weight, its_length = pools.pop()
            value = (before * its_weight + value * weight) / (its_weight + weight)
            weight, length = weight + its_weight, length + its_length
        pools.append((value, weight, length))
    return [value for value, _, length in pools for _ in range(length)]


def crossing(rates: Sequence[float], shares: Sequence[float], *, level: float, floor: float) -> float | None:
    """Return the rate at which a non-decreasing share reaches `level`, between the points by the share's logarithm.

    rates: ascending. floor: shares below count as this much, for a logarithm. None where all stay below; the first rate
    where all are above.
    """
    if not rates or shares[-1] < level:
        return None
    above = next(i for i, share in enumerate(shares) if share >= level)
    if above == 0:
        return rates[0]
    low, high = max(shares[above - 1], floor), max(shares[above], floor)
    if high <= low:
        return rates[above]
    part = (math.log(level) - math.log(low)) / (math.log(high) - math.log(low))
    return rates[above - 1] + min(max(part, 0.0), 1.0) * (rates[above] - rates[above - 1])
