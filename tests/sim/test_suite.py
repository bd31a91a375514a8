"""The suite itself: always the same, judged as stated; and the quick one as bounds on what our laws do today."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evalpipe.control.build import RECIPES, resolve_law
from evalpipe.errors import ConfigError
from evalpipe.sim.bounds import BY_NAME, Bound, bounds_of, most_on_average
from evalpipe.sim.cases import CASES, QUICK, Case
from evalpipe.sim.row import Row
from evalpipe.sim.suite import SuiteTable, cases_of, run_suite

NAMES = [case.name for case in CASES]


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def same(one: SuiteTable, other: SuiteTable) -> bool:
    """Bit for bit; a figure that is NaN in both is the same."""
    return [repr(row) for row in one.rows] == [repr(row) for row in other.rows]


def test_names_are_unique_and_quick_ones_exist():
    """A case is found by its name alone."""
    assert len(set(NAMES)) == len(NAMES)
    assert set(QUICK) <= set(NAMES)
    assert {case.kind for case in cases_of("quick")} >= {
        "batching",
        "sharing",
        "quota",
        "trouble",
        "path",
        "neighbours",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_draw_is_the_same_each_time_and_unlike_the_next(name: str):
    """The scenario follows from name and seed alone, jobs and all."""
    case = case_of(name)

    assert repr(case.draw(1)) == repr(case.draw(1))
    assert repr(case.draw(1)) != repr(case.draw(2))


@pytest.mark.slow
def test_one_process_and_two_give_the_same_rows():
    """Bit for bit, and in the same order."""
    one, two = (
        run_suite("full", laws=("gradient",), seeds=(0, 1), only="[48] slots", processes=number) for number in (1, 2)
    )

    assert same(one, two)
    assert [(row.case, row.seed) for row in one.rows] == [
        ("4 slots", 0),
        ("4 slots", 1),
        ("8 slots", 0),
        ("8 slots", 1),
    ]


def test_any_law_can_be_raced():
    """Whatever build_law knows, raced by its name."""
    table = run_suite("quick", laws=tuple(RECIPES), only="8 slots")

    assert [row.law for row in table.rows] == list(RECIPES)
    assert all(row.makespan_s > 0 for row in table.rows)


def test_progress_is_told_a_line_a_case():
    """Which of how many, and what came of it."""
    told: list[str] = []

    run_suite("quick", laws=("gradient",), only="8 slots", progress=told.append)

    assert len(told) == 1
    assert told[0].startswith("1/1 8 slots #0: best fixed limit ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "quik"}, "did you mean 'quick'"),
        ({"laws": ("gradeint",)}, "did you mean 'gradient'"),
        ({"laws": ()}, "at least one law"),
        ({"only": "no such case"}, "no case of suite 'quick'"),
    ],
)
def test_wrong_suite_is_refused(arguments: dict, message: str):
    """A name that is not known is answered with the nearest one that is."""
    with pytest.raises(ConfigError, match=message):
        run_suite(**arguments)


@pytest.mark.parametrize(
    ("bound", "value", "said"),
    [
        (Bound("over_best", most=1.12), 1.3, "over_best 1.3 > 1.12"),
        (Bound("over_best", most=1.12), 1.12, ""),
        (Bound("jain", least=0.97), 0.5, "jain 0.5 < 0.97"),
        (Bound("jain", least=0.97), math.nan, ""),
    ],
)
def test_a_broken_bound_says_bound_and_figure(bound: Bound, value: float, said: str):
    """Both numbers, so that nobody has to look them up."""
    assert bound.broken_by(value) == said


def test_every_bound_is_on_a_figure_that_rows_have():
    """A bound on a misspelt figure would never be broken."""
    figures = {bound.figure for case in CASES for law in RECIPES for bound in bounds_of(case, case.draw(0), law)}

    assert figures <= set(Row.__dataclass_fields__)
    assert {"over_best", "jain", "settle_s", "quota_share", "ttft_over_best", "outage_errors_over_limit"} <= figures


def test_bounds_by_name_name_cases():
    """A case that was renamed would lose its bound in silence."""
    assert set(BY_NAME) <= set(NAMES)


def test_stationary_batching_is_judged_more_sharply():
    """1.03 there, 1.12 elsewhere; a law that nobody promised anything for is not judged."""

    def most(name: str, law: str) -> float | None:
        case = case_of(name)
        return next((b.most for b in bounds_of(case, case.draw(0), law) if b.figure == "over_best"), None)

    assert (most("64 slots", "progress"), most("drift", "progress"), most("64 slots", "regress")) == (1.03, 1.12, 1.25)
    assert most("64 slots", "bbr-published") is None


def test_auto_is_judged_as_what_it_stands_for():
    """The default has the bounds of the law that it means."""
    case = case_of("64 slots")

    meant = resolve_law("auto")[0]

    assert bounds_of(case, case.draw(0), "auto") == bounds_of(case, case.draw(0), meant) != ()
    assert most_on_average("auto") == most_on_average(meant) is not None


def test_a_summary_counts_raced_cases_alone():
    """Mean and worst are over the rows that have a ratio; a case beside others counts for its bounds only."""
    table = run_suite("quick", laws=("fixed",), only="8 slots")
    raced = table.rows[0]
    worse = replace(raced, case="64 slots", over_best=1.5, broken=("over_best 1.5 > 1.03",))
    beside = replace(raced, kind="neighbours", case="two runs", over_best=math.nan, broken=("jain 0.5 < 0.97",))

    (summary,) = replace(table, rows=(replace(raced, over_best=1.1), worse, beside)).summaries()

    assert (summary.mean, summary.worst, summary.worst_case) == (pytest.approx(1.3), 1.5, "64 slots #0")
    assert summary.by_kind == {"batching": pytest.approx(1.3)}
    assert (summary.broken, summary.rows, summary.most) == (2, 3, None)


#: case -> most over the best fixed limit's makespan, from a cold start
RATIOS = {
    "8 slots": 1.03,
    "64 slots": 1.03,
    "bounded queue": 1.05,
    "cliff, work spread 0.15": 1.10,
    "cliff-shared": 1.12,
    "rpm, bucket": 1.05,
    "outage, 503": 1.08,
    "halved and doubled": 1.05,
}


@pytest.mark.parametrize("case", RATIOS)
def test_progress_is_near_the_best_fixed_limit(case: str):
    """On servers of three kinds and through two kinds of trouble; and the table of best limits fits the code."""
    table = run_suite("quick", laws=("progress",), only=case)
    (row,) = table.rows

    assert row.over_best <= RATIOS[case]
    assert row.unfinished == 0
    assert not row.outage_errors_over_limit > 20  # NaN where there was no outage
    assert table.renewed == 0, "write the table anew: evalpipe sim race --suite full --oracle"


def test_two_runs_share_fairly():
    """Two of our own that know nothing of each other get the same of a server."""
    (row,) = run_suite("quick", laws=("progress",), only="two runs").rows

    assert row.jain >= 0.97
