"""Race laws over courses in virtual time, beside the best fixed limit, which nobody knows beforehand.

Numbers only: report/race.py makes a table of them. Every heat of a seed gets the same jobs and the same server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from evalpipe.errors import ConfigError
from evalpipe.sim.course import Course
from evalpipe.sim.engine import Job
from evalpipe.sim.measure import Heat, average, measure
from evalpipe.sim.profiles import did_you_mean
from evalpipe.sim.scenarios import Contender, Suite, fixed, suite
from evalpipe.sim.search import find_best
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

BEST_FIXED = "best fixed limit"  # what its row is called


@dataclass(frozen=True, slots=True)
class RaceRow:
    """A contender on a course: mean over the seeds.

    over_best: makespan over that of the best fixed limit; worst_over_best: the same of the worst seed.
    """

    course: str
    contender: str
    over_best: float
    worst_over_best: float
    heat: Heat


@dataclass(frozen=True, slots=True)
class BestFixed:
    """The fixed limit of least mean makespan on a course, the smaller of equals; tried: how many were."""

    course: str
    limit: int
    tried: int


@dataclass(frozen=True, slots=True)
class RaceTable:
    """rows: course by course; in each the contenders in order, then the best fixed limit. jobs: of each course."""

    suite: str
    seeds: tuple[int, ...]
    jobs: tuple[int, ...]
    best: tuple[BestFixed, ...]
    rows: tuple[RaceRow, ...]

    def row(self, course: str, contender: str) -> RaceRow:
        """Return one row. Raises KeyError if there is none."""
        for row in self.rows:
            if (row.course, row.contender) == (course, contender):
                return row
        raise KeyError((course, contender))


def run_race(
    name: str,
    *,
    seeds: Sequence[int] = (0,),
    laws: Sequence[str] | None = None,
    jobs: int | None = None,
    setup: VirtualSetup | None = None,
    progress: Callable[[str], None] | None = None,
) -> RaceTable:
    """Run a suite and return its table; takes seconds a seed.

    laws: only the contenders of these laws, None for all; the best fixed limit is always sought. jobs: of each course,
    None for the suite's. setup: None for one worker and nothing paced, the laws alone. progress: told one line for each
    contender. Raises ConfigError for an unknown suite or law.
    """
    chosen = _chosen(suite(name), laws, jobs)
    if not seeds:
        raise ConfigError("a race needs at least one seed, got none")
    tracks = [_Track(course, seeds, setup or VirtualSetup(quota=None)) for course in chosen.courses]
    say = progress or (lambda line: None)
    best, rows = [], []
    for track in tracks:
        say(f"{track.course.name}: looking for the best fixed limit")
        best.append(_best_fixed(track, chosen.max_limit))
        rows += _race(track, chosen.contenders, best[-1].limit, say)
    return RaceTable(name, tuple(seeds), tuple(c.jobs for c in chosen.courses), tuple(best), tuple(rows))


class _Track:
    """A course, its jobs drawn, and the setup each heat on it has."""

    def __init__(self, course: Course, seeds: Sequence[int], setup: VirtualSetup) -> None:
        self.course = course
        self._setup = replace(setup, overhead_s=course.profile.overhead_s)
        self._draws: list[tuple[int, list[Job]]] = [(seed, course.draw(seed)) for seed in seeds]

    def heats(self, contender: Contender) -> list[Heat]:
        """Return one heat a seed."""
        return [measure(self._run(contender, *draw, self._setup.horizon_s)) for draw in self._draws]

    def total_s(self, contender: Contender, *, within_s: float) -> float:
        """Return the makespans of all seeds together; infinity as soon as they exceed within_s."""
        total_s = 0.0
        for draw in self._draws:
            left_s = min(within_s - total_s, self._setup.horizon_s)
            run = self._run(contender, *draw, left_s) if left_s > 0 else None
            if run is None or run.unfinished:
                return math.inf
            total_s += run.makespan_s
        return total_s

    def _run(self, contender: Contender, seed: int, jobs: list[Job], horizon_s: float) -> VirtualRun:
        setup = replace(self._setup, seed=seed, horizon_s=horizon_s)
        return run_virtual(contender.build(), self.course.server(seed), jobs, setup=setup)


def _chosen(whole: Suite, laws: Sequence[str] | None, jobs: int | None) -> Suite:
    known = {contender.law for contender in whole.contenders}
    for law in laws or ():
        if law not in known:
            raise ConfigError(f"suite {whole.name!r} has no law {law!r}; {did_you_mean(law, known)}")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    return replace(
        whole,
        courses=tuple(course if jobs is None else replace(course, jobs=jobs) for course in whole.courses),
        contenders=tuple(c for c in whole.contenders if laws is None or c.law in laws),
    )


def _race(track: _Track, contenders: Sequence[Contender], limit: int, say: Callable[[str], None]) -> list[RaceRow]:
    yardstick = track.heats(fixed(limit))
    rows = []
    for contender in contenders:
        rows.append(_row(track.course.name, contender.label, track.heats(contender), yardstick))
        say(f"{track.course.name}: {contender.label} {rows[-1].heat.makespan_s:.1f} s")
    return [*rows, _row(track.course.name, BEST_FIXED, yardstick, yardstick)]


def _row(course: str, label: str, heats: Sequence[Heat], yardstick: Sequence[Heat]) -> RaceRow:
    mean = average(heats)
    ratios = [heat.makespan_s / best.makespan_s for heat, best in zip(heats, yardstick, strict=True)]
    return RaceRow(course, label, mean.makespan_s / average(yardstick).makespan_s, max(ratios), mean)


def _best_fixed(track: _Track, max_limit: int) -> BestFixed:
    def total_s(limit: int, within_s: float) -> float:
        return track.total_s(fixed(limit), within_s=within_s)

    found = find_best(total_s, max_limit=max_limit)
    return BestFixed(track.course.name, found.limit, found.tried)
