"""The table of best fixed limits: believed only while nothing has changed, and complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evalpipe.sim import oracle
from evalpipe.sim.cases import CASES, QUICK
from evalpipe.sim.cliff import CliffParams
from evalpipe.sim.course import Course
from evalpipe.sim.oracle import Entry, best_of, key_of, place_of, play_fixed, read_table, without_strangers, write_table
from evalpipe.sim.profiles import Profile, Work
from evalpipe.sim.scenario import Scenario

SEEDS = range(5)


@pytest.fixture
def small() -> Scenario:
    """A cliff of five."""
    server = CliffParams(safe=5, flat_until=6, reject_above=9)
    return Scenario(Course("small", Profile("small", server, Work(sigma=0.0)), 100, prompt_median=50, prompt_sigma=0))


def test_a_good_entry_is_believed(small: Scenario):
    """What the search found is found in the table the next time, with the same run at its limit."""
    first = best_of(small, seed=0, entry=None)
    again = best_of(small, seed=0, entry=first.entry)

    assert (first.is_new, again.is_new) == (True, False)
    assert first.entry.limit == 5
    assert again.played.ours[0].makespan_s == first.entry.makespan_s == pytest.approx(100 * 0.4 / 5)


@pytest.mark.parametrize("change", [{"key": "another"}, {"makespan_s": 8.1}])
def test_a_stale_entry_is_sought_anew(small: Scenario, change: dict):
    """Neither an entry of other values nor one whose run takes another time is believed."""
    good = best_of(small, seed=0, entry=None).entry
    stale = replace(good, limit=3, **change)

    found = best_of(small, seed=0, entry=stale)

    assert found.is_new
    assert found.entry == good


def test_everything_that_matters_is_in_the_key(small: Scenario):
    """Another seed, another server, more jobs: each is another key; the same is the same."""
    others = [
        (small, 1),
        (replace(small, course=replace(small.course, jobs=101)), 0),
        (replace(small, max_limit=300), 0),
    ]

    assert key_of(small, 0) == key_of(replace(small), 0)
    assert len({key_of(small, 0), *(key_of(scenario, seed) for scenario, seed in others)}) == 4


def test_the_best_is_sought_without_the_distance(small: Scenario):
    """A law far from its workers is measured against a limit beside them: the distance is its own cost."""
    far = replace(small, setup=replace(small.setup, workers=64, lag_s=1.0))

    assert key_of(far.plain(), 0) == key_of(small.plain(), 0)


def test_rare_exchanges_are_nothing_to_a_fixed_limit():
    """Where nothing is refused, a tenth of the exchanges gives the same run, to the last bit."""
    scenario = next(case for case in CASES if case.name == "8 slots").draw(0)
    often = replace(scenario, setup=replace(scenario.setup, exchange_s=0.1))

    runs = [play_fixed(one, 9, seed=0).ours[0] for one in (scenario.plain(), often)]

    assert scenario.plain().setup.exchange_s > often.setup.exchange_s
    assert np.array_equal(runs[0].done_at, runs[1].done_at)
    assert np.array_equal(runs[0].ttft_s, runs[1].ttft_s)


def test_a_table_is_read_as_it_was_written(tmp_path: Path):
    """In order of names, one line an entry; a table that is not there is empty."""
    entries = {"b #1": Entry("k", 7, 3.25, 9), "a #0": Entry("l", 2, 1.5, 4)}
    file = tmp_path / "table.json"

    write_table(entries, file)

    assert read_table(file) == entries
    assert [line.strip()[:6] for line in file.read_text().splitlines()[1:3]] == ['"a #0"', '"b #1"']
    assert read_table(tmp_path / "nothing.json") == {}


def test_cases_that_are_gone_leave_the_table():
    """A name with a number sign of its own is kept by the whole name."""
    entries = {"here #1": Entry("k", 7, 3.25, 9), "gone #0": Entry("l", 2, 1.5, 4)}

    assert set(without_strangers(entries, ["here"])) == {"here #1"}


def test_the_table_has_every_case_and_seed():
    """What `evalpipe sim race --suite full --oracle` writes covers each raced case with five seeds."""
    wanted = {place_of(case.name, seed) for case in CASES if case.is_raced for seed in SEEDS}

    assert wanted <= read_table().keys()


@pytest.mark.parametrize("name", [name for name in QUICK if name not in ("two runs",)])
def test_the_table_is_not_stale(name: str):
    """The keys of the quick suite's cases are those of the code as it is; else write the table anew."""
    (case,) = (case for case in CASES if case.name == name)

    assert oracle.read_table()[place_of(name, 0)].key == key_of(case.draw(0).plain(), 0)
