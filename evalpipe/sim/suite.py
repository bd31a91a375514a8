"""The suite: every law asked for, on every case, with every seed, on all cores; judged, and always the same.

A task is a case with a seed; it is pure arithmetic, so one process or eight give the same rows, in the same order.
Numbers only: evalpipe/report/suite.py makes text of them.
"""

from __future__ import annotations

import fnmatch
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from evalpipe.control.build import RECIPES, build_law, resolve_law
from evalpipe.control.law import Law
from evalpipe.errors import ConfigError
from evalpipe.sim.bounds import bounds_of, most_on_average
from evalpipe.sim.cases import CASES, QUICK, Case
from evalpipe.sim.oracle import HORIZON_S, Best, Entry, best_of, place_of, read_table
from evalpipe.sim.profiles import did_you_mean
from evalpipe.sim.row import Row, Yardstick, heat_of, row_of
from evalpipe.sim.scenario import Played, Scenario

SUITES = ("quick", "full")
LAWS = ("progress", "gradient")  # raced where none are named
GIVE_UP = 10.0  # times the best fixed limit's makespan: a law that takes longer has failed, and may stop


@dataclass(frozen=True, slots=True)
class Task:
    """A case with a seed, and what the table says of its best fixed limit."""

    case: str
    seed: int
    laws: tuple[str, ...]
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Answer:
    """rows: one a law. entry: of the best fixed limit, None where it was not sought; is_new: not as the table says."""

    task: Task
    rows: tuple[Row, ...]
    entry: Entry | None
    is_new: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """A law over all raced cases: over the best fixed limit, mean and worst and where; mean by kind of case.

    most: what the mean may be, None: not judged. broken: rows that break a bound, of `rows`.
    """

    law: str
    mean: float
    worst: float
    worst_case: str
    by_kind: Mapping[str, float]
    most: float | None
    broken: int
    rows: int


@dataclass(frozen=True, slots=True)
class SuiteTable:
    """rows: by case, seed and law, in the order of CASES. entries: best fixed limits by name; renewed: of them."""

    suite: str
    laws: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    entries: Mapping[str, Entry]
    renewed: int

    def summaries(self) -> tuple[Summary, ...]:
        return tuple(_summary(law, [row for row in self.rows if row.law == law]) for law in self.laws)


def run_suite(
    name: str = "quick",
    *,
    laws: Sequence[str] = LAWS,
    seeds: Sequence[int] = (0,),
    only: str | None = None,
    processes: int = 1,
    progress: Callable[[str], None] | None = None,
) -> SuiteTable:
    """Run a suite. only: a pattern of cases' names, as of files. processes: 1 for none beside this one.

    progress: told one line a case and seed. Raises ConfigError for an unknown suite or law, or when no case is meant.
    """
    tasks = _tasks(cases_of(name, only), laws=_known(laws), seeds=seeds)
    say = progress or (lambda line: None)
    answers = []
    for answer in _answers(tasks, processes):
        answers.append(answer)
        say(_line(answer, len(answers), len(tasks)))
    return SuiteTable(
        name,
        tuple(laws),
        tuple(seeds),
        tuple(row for answer in answers for row in answer.rows),
        {place_of(a.task.case, a.task.seed): a.entry for a in answers if a.entry is not None},
        sum(answer.is_new for answer in answers),
    )


def cases_of(name: str, only: str | None = None) -> tuple[Case, ...]:
    """Return the cases of a suite whose names fit the pattern. Raises ConfigError as `run_suite`."""
    if name not in SUITES:
        raise ConfigError(f"unknown suite {name!r}; {did_you_mean(name, SUITES)}")
    whole = [case for case in CASES if name == "full" or case.name in QUICK]
    meant = tuple(case for case in whole if only is None or fnmatch.fnmatch(case.name, only))
    if not meant:
        raise ConfigError(f"no case of suite {name!r} is like {only!r}; {did_you_mean(only or '', _names(whole))}")
    return meant


def run_task(task: Task) -> Answer:
    """Play the laws of a task; the same answer always, in whatever process."""
    case = next(case for case in CASES if case.name == task.case)
    scenario = case.draw(task.seed)
    best = best_of(scenario, seed=task.seed, entry=task.entry) if case.is_raced else None
    yardstick = _yardstick(scenario, task.seed, best)
    rows = tuple(_row(case, scenario, task.seed, law, yardstick) for law in task.laws)
    return Answer(task, rows, best.entry if best else None, best.is_new if best else False)


def play(scenario: Scenario, law: str, *, seed: int, limit: int = 0, horizon_s: float = HORIZON_S) -> Played:
    """Play one law on a scenario. limit: the best fixed one, 0 where nobody knows."""
    start = scenario.start_over_best * limit if scenario.start_over_best and limit else None
    return scenario.play(lambda: _build(law, start), seed=seed, horizon_s=horizon_s)


def _build(law: str, start: float | None) -> Law:
    if start is None:
        return build_law(law)
    most = RECIPES[resolve_law(law)[0]].max_limit
    return build_law(law, start=min(max(start, 1.0), most))


def _row(case: Case, scenario: Scenario, seed: int, law: str, yardstick: Yardstick) -> Row:
    horizon_s = GIVE_UP * yardstick.heat.makespan_s if yardstick.heat else HORIZON_S
    played = play(scenario, law, seed=seed, limit=yardstick.limit, horizon_s=min(horizon_s, HORIZON_S))
    row = row_of(case.name, case.kind, seed, law, scenario, played, yardstick)
    said = (bound.broken_by(getattr(row, bound.figure)) for bound in bounds_of(case, scenario, law))
    return replace(row, broken=tuple(word for word in said if word))


def _yardstick(scenario: Scenario, seed: int, best: Best | None) -> Yardstick:
    if best is not None:
        return Yardstick(best.entry.limit, heat_of(scenario, best.played))
    alone = scenario.play_guest_alone(seed=seed, horizon_s=HORIZON_S) if scenario.guests else None
    return Yardstick(guest_alone=alone)


def _tasks(cases: Iterable[Case], *, laws: tuple[str, ...], seeds: Sequence[int]) -> list[Task]:
    table = read_table()
    return [Task(case.name, seed, laws, table.get(place_of(case.name, seed))) for case in cases for seed in seeds]


def _answers(tasks: Sequence[Task], processes: int) -> Iterator[Answer]:
    if processes <= 1:
        yield from map(run_task, tasks)
        return
    # spawned, not forked: who calls may have threads
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_task, tasks)


def _known(laws: Sequence[str]) -> tuple[str, ...]:
    if not laws:
        raise ConfigError("a race needs at least one law, got none")
    for law in laws:
        resolve_law(law)
    return tuple(laws)


def _names(cases: Iterable[Case]) -> list[str]:
    return [case.name for case in cases]


def _line(answer: Answer, number: int, of: int) -> str:
    shown = ", ".join(f"{row.law} {row.over_best:.2f}" for row in answer.rows)
    best = f"best fixed limit {answer.entry.limit}: " if answer.entry else ""
    return f"{number}/{of} {place_of(answer.task.case, answer.task.seed)}: {best}{shown}"


def _summary(law: str, rows: Sequence[Row]) -> Summary:
    raced = [row for row in rows if not math.isnan(row.over_best)]
    worst = max(raced, key=lambda row: row.over_best, default=None)
    kinds = dict.fromkeys(row.kind for row in raced)
    return Summary(
        law=law,
        mean=_mean(raced),
        worst=worst.over_best if worst else math.nan,
        worst_case=place_of(worst.case, worst.seed) if worst else "",
        by_kind={kind: _mean([row for row in raced if row.kind == kind]) for kind in kinds},
        most=most_on_average(law),
        broken=sum(bool(row.broken) for row in rows),
        rows=len(rows),
    )


def _mean(rows: Sequence[Row]) -> float:
    return sum(row.over_best for row in rows) / len(rows) if rows else math.nan
