"""The plain procedures: rows at levels that the user gives, and a sweep that finds its own; see also capacity.py."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from evalpipe.errors import ConfigError
from evalpipe.loadtest.capacity import Plan, bracket, knee_of
from evalpipe.loadtest.knee import Knee
from evalpipe.loadtest.ladder import ceiling_of, climb
from evalpipe.loadtest.probe import Point, Probe

STAGGER_S = 3.0  # users who begin all at once stay in step for a minute (notes/loadtest.md 0)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of both loops, and the knee that they bracket: no promise, nothing was confirmed."""

    points: Sequence[Point]
    knee: Knee


def closed_rows(
    users: Sequence[int], *, warmup_s: float, duration_s: float, seed: int
) -> Generator[Probe, Point, list[Point]]:
    """One closed loop for each number of users; the ladder of doublings where none is given."""
    if not users:
        return (yield from climb(seed=seed))
    points = []
    for number, count in enumerate(users):
        stagger_s = min(STAGGER_S, warmup_s)
        points.append((yield Probe("closed", count, warmup_s, duration_s, seed=seed + number, stagger_s=stagger_s)))
    return points


def open_rows(
    rates: Sequence[float], *, warmup_s: float, duration_s: float, seed: int
) -> Generator[Probe, Point, list[Point]]:
    """One open loop for each rate, all with the same gaps in units of their mean: what differs is the load."""
    points = []
    for rate in rates:
        points.append((yield Probe("open", rate, warmup_s, duration_s, seed=seed)))
    return points


def sweep(plan: Plan, rates: Sequence[float]) -> Generator[Probe, Point, Sweep]:
    """Open loops at the rates, or around the ceiling of a closed-loop ladder where none is given; then the knee."""
    rungs: list[Point] = []
    if rates:
        points = yield from open_rows(rates, warmup_s=plan.warmup_s, duration_s=plan.bracket_s, seed=plan.seed)
    else:
        rungs = yield from climb(seed=plan.seed, most_users=plan.most_users)
        if not rungs:
            raise ConfigError("one user got no answer: there is nothing to measure (see the row's errors)")
        points = yield from bracket(plan, ceiling_of(rungs).rate)
    return Sweep([*rungs, *points], knee_of(plan, points))
