"""The published experiment in virtual time: the publication's order holds, and so do the bounds we state."""

from __future__ import annotations

import pytest

from evalpipe.control.build import RECIPES
from evalpipe.errors import ConfigError
from evalpipe.sim.measure import average
from evalpipe.sim.race import BEST_FIXED, RaceTable, run_race
from evalpipe.sim.scenarios import SUITES, fixed, suite
from evalpipe.sim.virtual import run_virtual

SPREAD = ("cliff, work spread 0.15", "cliff, work spread 0.4", "cliff-shared, work spread 0.15")
CONSTANT_SHARED = "cliff-shared, work spread 0"
PROGRESS = "progress from 16"
NORMALISED = "gradient-published, normalise: total"


@pytest.fixture(scope="module")
def published() -> RaceTable:
    return run_race("published")


@pytest.mark.parametrize("course", [*SPREAD, CONSTANT_SHARED])
def test_order_of_the_publication(published: RaceTable, course: str):
    """Makespan and P99 of fixed 64 > aimd-published > gradient-published on latency per token.

    One tie: with constant work a job of the collapse takes 3.5 s exactly, so there the P99 of the first two is equal.
    """
    still, aimd, gradient = (published.row(course, label).heat for label in ("fixed 64", "aimd-published", NORMALISED))

    assert still.makespan_s > aimd.makespan_s > gradient.makespan_s
    assert aimd.p99_s > gradient.p99_s
    if course == CONSTANT_SHARED:
        assert still.p99_s == pytest.approx(3.5)
        assert still.p99_s >= aimd.p99_s
    else:
        assert still.p99_s > aimd.p99_s


@pytest.mark.parametrize("course", [course.name for course in SUITES["published"].courses])
def test_normalised_form_is_near_the_best_fixed_limit(published: RaceTable, course: str):
    """On latency per token the published law takes at most 1.25 times the best fixed limit, without a rejection."""
    row = published.row(course, NORMALISED)

    assert row.over_best <= 1.25
    assert row.heat.rejections == 0


@pytest.mark.parametrize("course", SPREAD)
def test_plain_form_fails_on_spread_work(published: RaceTable, course: str):
    """On raw latency the published law takes at least 5 times the best fixed limit once work is spread."""
    assert published.row(course, "gradient-published").over_best >= 5


@pytest.mark.parametrize("course", [course.name for course in SUITES["published"].courses])
def test_progress_is_near_the_best_fixed_limit_from_a_cold_start(published: RaceTable, course: str):
    """From 16: within 1.15 of the best fixed limit, 0.30 of fixed 64, 0.60 of aimd-published (claimed: 0.53, 0.69).

    Beside another tenant the best fixed limit itself is 0.59 of aimd-published, so there it is 0.70.
    """
    row = published.row(course, PROGRESS)

    assert row.over_best <= 1.15
    assert row.heat.makespan_s <= 0.30 * published.row(course, "fixed 64").heat.makespan_s
    over_aimd = 0.70 if "shared" in course else 0.60
    assert row.heat.makespan_s <= over_aimd * published.row(course, "aimd-published").heat.makespan_s


def test_progress_does_not_fall_into_the_cliff(published: RaceTable):
    """No rejection; the P99 of a unit of work is at most 2.5 times its 0.4 s alone, 3 times on any course.

    The goal is 2.2; how long the one step over the edge lasts depends on which answers are about to end.
    """
    heats = [published.row(f"cliff, work spread {sigma}", PROGRESS).heat for sigma in (0, 0.15, 0.4)]
    over_base = [heat.p99_per_work_s / 0.4 for heat in heats]

    assert [heat.rejections for heat in heats] == [0, 0, 0]
    assert sum(over_base) / 3 <= 2.5
    assert max(over_base) <= 3.0


def test_fixed_64_is_rejected_only_beside_another_tenant(published: RaceTable):
    """64 in flight never reach the 70 of the plain cliff; with a neighbour they do, by the hundred."""
    assert published.row("cliff, work spread 0.15", "fixed 64").heat.rejections == 0
    assert published.row("cliff-shared, work spread 0.15", "fixed 64").heat.rejections > 300


def test_every_row_obeys_littles_law(published: RaceTable):
    """All jobs finish, so requests in flight are completions a second times latency; retries wait outside."""
    for row in published.rows:
        assert row.heat.unfinished == 0
        assert row.heat.littles_in_flight == pytest.approx(row.heat.mean_in_flight, rel=1e-6)


def test_best_fixed_limit_is_where_the_server_saturates(published: RaceTable):
    """The plain cliff is best between 45 and 55 in flight, and no contender is faster than the best fixed limit."""
    plain = {found.course: found.limit for found in published.best if found.course.startswith("cliff,")}

    assert all(45 <= limit <= 55 for limit in plain.values())
    assert all(row.over_best >= 1.0 for row in published.rows)
    assert all(published.row(course, BEST_FIXED).over_best == 1.0 for course in plain)


@pytest.mark.slow
def test_best_fixed_limit_is_the_least_of_a_full_sweep():
    """On the plain cliff the search finds what trying each limit from 2 to 128 finds; of equals the smallest."""
    (course,) = (c for c in SUITES["published"].courses if c.name == "cliff, work spread 0")
    jobs = course.draw(0)[:200]
    sweep = {limit: run_virtual(fixed(limit).build(), course.server(0), jobs).makespan_s for limit in range(2, 129)}

    table = run_race("published", laws=["gradient"], jobs=200)

    least = min(sweep.values())
    assert sweep[table.best[0].limit] == pytest.approx(least)


@pytest.mark.slow
def test_every_law_completes_the_default_server():
    """2,000 items of profile vllm, each law: all done; ours within 1.05 of the best fixed limit."""
    table = run_race("laws", jobs=2_000)

    assert {contender.law for contender in suite("laws").contenders} == set(RECIPES)
    assert [row.heat.unfinished for row in table.rows] == [0] * len(table.rows)
    assert table.row("vllm", "gradient").over_best <= 1.05


@pytest.mark.slow
def test_seeds_are_averaged_and_the_worst_is_kept():
    """Two seeds: each number is the mean of the two runs alone; the worst ratio is at least the mean one."""
    both = run_race("published", laws=["aimd-published"], jobs=150, seeds=(0, 1))
    alone = [run_race("published", laws=["aimd-published"], jobs=150, seeds=(seed,)) for seed in (0, 1)]

    course = CONSTANT_SHARED
    heats = [table.row(course, "aimd-published").heat for table in alone]
    row = both.row(course, "aimd-published")
    assert repr(row.heat) == repr(average(heats))  # what was not measured is NaN, which equals nothing
    assert row.worst_over_best >= row.over_best - 1e-9


def test_progress_is_told_for_each_contender():
    """One line a course for the search, one for each contender."""
    told: list[str] = []

    run_race("published", laws=["fixed"], jobs=50, progress=told.append)

    assert len(told) == 2 * len(SUITES["published"].courses)
    assert told[1].startswith("cliff, work spread 0: fixed 64 ")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("publshed", {}, "did you mean 'published'"),
        ("published", {"laws": ["gradent"]}, "did you mean 'gradient'"),
        ("published", {"jobs": 0}, "jobs must be at least 1"),
        ("published", {"seeds": ()}, "at least one seed"),
    ],
)
def test_wrong_race_is_refused(name: str, options: dict, message: str):
    """A name that is not known is answered with the nearest one that is."""
    with pytest.raises(ConfigError, match=message):
        run_race(name, **options)


def test_tokens_are_proportional_to_work():
    """On the published courses prompt + output tokens are 400 a unit of work, within rounding."""
    for course in SUITES["published"].courses:
        for job in course.draw(0):
            assert abs(job.prompt_tokens + job.output_tokens - 400 * job.work) <= 0.5
