"""The search for the best fixed limit: what a law is measured against, and what nobody knows beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_LIMIT = 2
# Where the search begins. Steps of a root of 2, likely ones first: a limit is given up when it takes longer than the
# best one so far. On the courses we have the makespan has one valley wider than a step; refining finds its floor.
GRID = (45, 64, 32, 91, 128, 23, 16, 181, 256, 11, 8, 362, 512, 724, 1_024, 1_448, 6, 4, 3, 2)
MISSES = 2  # in a row, and the search turns: wider than any bump we have met
TIE_S = 1e-6  # makespans that differ by less are sums of rounded numbers

#: (limit, within_s) -> seconds that a run takes, infinity when more than within_s
SecondsOf = Callable[[int, float], float]


@dataclass(frozen=True, slots=True)
class Found:
    """The limit of least seconds, the smaller of equals; tried: how many were."""

    limit: int
    seconds: float
    tried: int


def find_best(seconds_of: SecondsOf, *, max_limit: int, near: int | None = None, fineness: float = 0.0) -> Found:
    """Try the grid, then around its best point with steps that halve.

    near: begin there and go outwards, on each side until two in a row were worse; None: try the whole grid.
    fineness: the last step, as a share of the limit; at least one.
    """
    tried: dict[int, float] = {}
    grid = [limit for limit in GRID if limit <= max_limit]
    best = _try(seconds_of, grid, tried) if near is None else _outwards(seconds_of, grid, near, tried)
    step = max(best // 4, 1)
    while step >= max(1, fineness * best):
        around = [limit for limit in (best - step, best + step) if MIN_LIMIT <= limit <= max_limit]
        found = _try(seconds_of, around, tried)
        step, best = (step if found != best else step // 2), found
    return Found(best, tried[best], len(tried))


def _outwards(seconds_of: SecondsOf, grid: Sequence[int], near: int, tried: dict[int, float]) -> int:
    best = first = min(grid, key=lambda limit: abs(math.log(limit / near)))
    _try(seconds_of, [first], tried)
    upwards = sorted(limit for limit in grid if limit > first)
    downwards = sorted((limit for limit in grid if limit < first), reverse=True)
    for side in (upwards, downwards):
        misses = 0
        for limit in side:
            before, best = best, _try(seconds_of, [limit], tried)
            misses = 0 if best != before else misses + 1
            if misses == MISSES:
                break
    return best


def _try(seconds_of: SecondsOf, limits: Sequence[int], tried: dict[int, float]) -> int:
    """Run the limits not tried yet, note their seconds, and return the best of all."""
    for limit in limits:
        if limit not in tried:
            # a hair above the best so far, so that a tie is seen as one
            within_s = min(tried.values(), default=math.inf) + TIE_S
            tried[limit] = seconds_of(limit, within_s)
    least_s = min(tried.values())
    return min(limit for limit, seconds in tried.items() if seconds <= least_s + TIE_S)
