"""kill -9 of the driver at any moment, then the same command: nothing lost beyond the bound, nothing twice (K1)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest
from chaos.drivers import Driver
from chaos.stage import Stage
from chaos.tables import Tables

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

#: moments while work is left, drawn in any order; moments at the end, at most one of each, in this order
ON_THE_WAY = ("start-up", "canaries", "middle", "middle")
AT_THE_END = ("end", "last commits", "compaction", "summary")

Reach = Callable[[Stage, Driver, random.Random], None]


def pause(seconds: float) -> None:
    time.sleep(seconds)  # the moment of a kill is drawn at random: this waits for nothing


def during_start(stage: Stage, driver: Driver, rng: random.Random) -> None:
    pause(rng.uniform(0.2, 4.0))


def during_canaries(stage: Stage, driver: Driver, rng: random.Random) -> None:
    stage.until_sent(rng.randint(1, 8), driver=driver)


def in_the_middle(stage: Stage, driver: Driver, rng: random.Random) -> None:
    stage.until_answered(rng.randint(9, 60), driver=driver)


def near_the_end(stage: Stage, driver: Driver, rng: random.Random) -> None:
    stage.until_distinct(stage.items - rng.randint(1, 12), driver=driver)


def after_the_last_answer(stage: Stage, driver: Driver, rng: random.Random) -> None:
    stage.until_distinct(stage.items, driver=driver)
    pause(rng.uniform(0.0, 0.6))


def while_compacting(stage: Stage, driver: Driver, rng: random.Random) -> None:
    stage.until_parts(driver=driver)


def before_the_summary(stage: Stage, driver: Driver, rng: random.Random) -> None:
    stage.until_parts(driver=driver, are_whole=True)
    pause(rng.uniform(0.0, 0.05))


MOMENTS: dict[str, Reach] = {
    "start-up": during_start,
    "canaries": during_canaries,
    "middle": in_the_middle,
    "end": near_the_end,
    "last commits": after_the_last_answer,
    "compaction": while_compacting,
    "summary": before_the_summary,
}


def draw(rng: random.Random, kills: int) -> list[str]:
    """Return the moments of so many kills, in the order they can happen."""
    last = sorted(rng.sample(AT_THE_END, k=min(3, kills - 2)), key=AT_THE_END.index)
    first = [rng.choice(ON_THE_WAY) for _ in range(kills - len(last))]
    return [*first, *last]


def run_and_kill(stage: Stage, moments: Sequence[str], rng: random.Random) -> None:
    """Start and kill at each moment in turn, let the last driver complete the run, then ask once more."""
    for moment in moments:
        driver = stage.start()
        MOMENTS[moment](stage, driver, rng)
        stage.kill(driver, moment)

    assert stage.start().wait() == 0, stage.said
    sent = stage.tail.look().everything
    assert stage.start().wait() == 0
    assert stage.tail.look().everything == sent, "a run that is complete sends nothing"


def judge(stage: Stage, tables: Tables, run: str) -> None:
    """Assert that all is there once and that each kill cost what it may, and note it."""
    found, costs = stage.check(), stage.bills()
    tables.add_bills("kill -9 of the driver, then the same command", run, costs, stage.standings())
    assert not found.over_limit, found.over_limit
    assert all(bill.paid_twice <= bill.bound for bill in costs), costs
    assert found.paid_twice == sum(bill.paid_twice for bill in costs)


def test_five_kills_and_nothing_lost_or_twice(make_stage, tables):
    """In every phase once: each item is stored once as the server answered it, and a complete run sends nothing."""
    stage = make_stage(items=120)
    run_and_kill(stage, ("start-up", "canaries", "middle", "end", "compaction"), random.Random(1))

    judge(stage, tables, "seed 1")


@pytest.mark.chaos
@pytest.mark.parametrize(("seed", "kills"), [pytest.param(2, 5, marks=pytest.mark.short), (3, 7), (4, 7), (5, 6)])
def test_the_same_command_goes_on_after_each_kill(make_stage, tables, seed: int, kills: int):
    """At moments drawn at random: each item is stored once, and each kill costs at most what was in its hands."""
    stage, rng = make_stage(), random.Random(seed)
    run_and_kill(stage, draw(rng, kills), rng)

    judge(stage, tables, f"seed {seed}")
