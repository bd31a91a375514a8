"""Race laws over courses in virtual time, beside the best fixed limit, which nobody knows beforehand.

Numbers only: report/race.py makes a table of them. Every heat of a seed gets the same jobs and the same server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Job
from evalpipe.sim.profiles import did_you_mean
from evalpipe.sim.scenarios import Contender, Course, Suite, fixed, suite
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

MIN_LIMIT, MAX_LIMIT = 2, 128  # where the best fixed limit is sought: the bounds of the published law
# Steps of a root of 2: on all courses makespan has one valley wider than that, and refining finds its floor.
GRID = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)


@dataclass(frozen=True, slots=True)
class Heat:
    """One run, or the mean of several, in numbers. Latencies are of the attempts that succeeded, in seconds.

    p99_per_work_s: seconds per unit of work. variance: (requests/s)^2 of completions in 1 s bins, middle 80 % of the
    run; cv: its root over the mean. littles_in_flight: completions a second times mean latency; mean_in_flight: the
    average over time, which it must equal.
    """

    makespan_s: float
    rejections: float
    p50_s: float
    p99_s: float
    p99_per_work_s: float
    variance: float
    cv: float
    littles_in_flight: float
    mean_in_flight: float
    unfinished: float


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
    None for the suite's. progress: told one line for each contender. Raises ConfigError for an unknown suite or law.
    """
    chosen = _chosen(suite(name), laws, jobs)
    if not seeds:
        raise ConfigError("a race needs at least one seed, got none")
    tracks = [_Track(course, seeds, setup or VirtualSetup()) for course in chosen.courses]
    say = progress or (lambda line: None)
    best, rows = [], []
    for track in tracks:
        say(f"{track.course.name}: looking for the best fixed limit")
        best.append(_best_fixed(track))
        rows += _race(track, chosen.contenders, best[-1].limit, say)
    return RaceTable(name, tuple(seeds), tuple(c.jobs for c in chosen.courses), tuple(best), tuple(rows))


class _Track:
    """A course with its jobs drawn, and the heats of each contender, run once."""

    def __init__(self, course: Course, seeds: Sequence[int], setup: VirtualSetup) -> None:
        self.course, self._setup = course, replace(setup, overhead_s=course.profile.overhead_s)
        self._draws: list[tuple[int, list[Job]]] = [(seed, course.draw(seed)) for seed in seeds]
        self._heats: dict[str, list[Heat]] = {}

    def heats(self, contender: Contender) -> list[Heat]:
        if contender.label not in self._heats:
            self._heats[contender.label] = [self._run(contender, seed, jobs) for seed, jobs in self._draws]
        return self._heats[contender.label]

    def makespan_s(self, limit: int) -> float:
        return average(self.heats(fixed(limit))).makespan_s

    def _run(self, contender: Contender, seed: int, jobs: list[Job]) -> Heat:
        setup = replace(self._setup, seed=seed)
        return measure(run_virtual(contender.build(), self.course.server(seed), jobs, setup=setup))


def measure(run: VirtualRun) -> Heat:
    """Reduce a run to the numbers of the table; latencies are NaN when nothing finished."""
    variance, cv = run.throughput_variance()
    p50_s, p99_s = np.percentile(run.rtt_s, (50, 99)) if len(run.rtt_s) else (np.nan, np.nan)
    per_work_s = np.percentile(run.rtt_s / run.work, 99) if len(run.rtt_s) else np.nan
    return Heat(
        makespan_s=run.makespan_s,
        rejections=run.rejections,
        p50_s=float(p50_s),
        p99_s=float(p99_s),
        p99_per_work_s=float(per_work_s),
        variance=variance,
        cv=cv,
        littles_in_flight=run.littles_in_flight,
        mean_in_flight=run.mean_in_flight,
        unfinished=run.unfinished,
    )


def average(heats: Sequence[Heat]) -> Heat:
    """Return the mean of each number."""
    return Heat(*(float(np.mean([getattr(heat, f.name) for heat in heats])) for f in fields(Heat)))


def _chosen(whole: Suite, laws: Sequence[str] | None, jobs: int | None) -> Suite:
    known = {contender.law for contender in whole.contenders}
    for law in laws or ():
        if law not in known:
            raise ConfigError(f"suite {whole.name!r} has no law {law!r}; {did_you_mean(law, known)}")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    return Suite(
        whole.name,
        tuple(course if jobs is None else replace(course, jobs=jobs) for course in whole.courses),
        tuple(c for c in whole.contenders if laws is None or c.law in laws),
    )


def _race(track: _Track, contenders: Sequence[Contender], limit: int, say: Callable[[str], None]) -> list[RaceRow]:
    yardstick = track.heats(fixed(limit))
    rows = []
    for contender in contenders:
        rows.append(_row(track, contender.label, track.heats(contender), yardstick))
        say(f"{track.course.name}: {contender.label} {rows[-1].heat.makespan_s:.1f} s")
    return [*rows, _row(track, f"best fixed: {limit}", yardstick, yardstick)]


def _row(track: _Track, label: str, heats: Sequence[Heat], yardstick: Sequence[Heat]) -> RaceRow:
    mean = average(heats)
    ratios = [heat.makespan_s / best.makespan_s for heat, best in zip(heats, yardstick, strict=True)]
    return RaceRow(track.course.name, label, mean.makespan_s / average(yardstick).makespan_s, max(ratios), mean)


def _best_fixed(track: _Track) -> BestFixed:
    """Search the grid, then around its best point with steps that halve; the smaller limit wins a tie."""
    tried = {limit: track.makespan_s(limit) for limit in GRID}
    best = _least(tried)
    step = max(best // 4, 1)
    while True:
        for limit in (best - step, best + step):
            if MIN_LIMIT <= limit <= MAX_LIMIT and limit not in tried:
                tried[limit] = track.makespan_s(limit)
        moved = _least(tried)
        if moved == best:
            if step == 1:
                return BestFixed(track.course.name, best, len(tried))
            step //= 2
        best = moved


def _least(tried: dict[int, float]) -> int:
    return min(tried, key=lambda limit: (round(tried[limit], 6), limit))
