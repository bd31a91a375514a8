"""The closed-loop ladder: 1, 2, 4, .. users until requests/s stop growing. Its ceiling bounds the open loop's rates.

A ceiling, not a promise: users who wait for an answer never offer more than the server serves, so a closed loop hides
every collapse of a queue.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from evalpipe.loadtest.probe import Point, Probe

MIN_GAIN = 1.05
MOST_USERS = 1024
MIN_S, LATENCIES = 10.0, 6.0  # a rung is measured for so long, or so many latencies


@dataclass(frozen=True, slots=True)
class Ceiling:
    """rate: most requests/s of any rung. users, e2e_s: of the first rung within 5 % of it.

    step_s, per_user_s: of latency(N) = output tokens * (step_s + per_user_s * N), by regression of 1 / X on 1 / N.
    """

    rate: float
    users: int
    e2e_s: float
    step_s: float
    per_user_s: float


def climb(*, seed: int, most_users: int = MOST_USERS) -> Generator[Probe, Point, list[Point]]:
    """Ask for one rung after the other; return them. Ends after one that gains less than 5 %, or at a failure."""
    rungs: list[Point] = []
    users, e2e_s, is_flat = 1, 1.0, False
    while users <= most_users and not is_flat:
        duration_s = max(MIN_S, LATENCIES * e2e_s)
        point = yield Probe("closed", users, 2 * e2e_s, duration_s, seed=seed, stagger_s=e2e_s)
        if point.measures.completed == 0 or point.measures.error_share > 0.5:
            break
        best = max((rung.measures.requests_per_s for rung in rungs if rung.is_usable), default=0.0)
        is_flat = point.is_usable and point.measures.requests_per_s < MIN_GAIN * best
        rungs.append(point)
        e2e_s = users / point.measures.requests_per_s * 1.5  # by Little's law, and the next rung is slower
        users *= 2
    return rungs


def ceiling_of(rungs: Sequence[Point]) -> Ceiling:
    """Return what the usable rungs say together, or all of them where none is; at least one."""
    rungs = [rung for rung in rungs if rung.is_usable] or rungs
    best = max(rung.measures.requests_per_s for rung in rungs)
    first = next(rung for rung in rungs if rung.measures.requests_per_s * MIN_GAIN >= best)
    step_s, per_user_s = step_times(rungs)
    return Ceiling(best, int(first.probe.level), first.probe.level / first.measures.requests_per_s, step_s, per_user_s)


def step_times(rungs: Sequence[Point]) -> tuple[float, float]:
    """Return (step_s, per_user_s) of 1 / Y = per_user_s + step_s / N, Y tokens/s; least squares over the rungs."""
    pairs = [
        (1 / rung.probe.level, 1 / rung.measures.output_tokens_per_s)
        for rung in rungs
        if rung.measures.output_tokens_per_s > 0
    ]
    if len(pairs) < 2:
        return (pairs[0][1], 0.0) if pairs else (0.0, 0.0)
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum((x - mean_x) ** 2 for x, _ in pairs)
    return slope, max(mean_y - slope * mean_x, 0.0)
