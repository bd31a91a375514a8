"""Workers and the controller die or stand still; the run goes on by itself, without the command again (K2, K3)."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from chaos.leftovers import find_processes
from chaos.stage import LIMIT, Stage, total_bound
from chaos.watching import until

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(300)]

WORKER, CONTROLLER = "ray::WorkerActor", "ray::ControllerActor"
#: a second and a half an answer: with LIMIT in flight 10 items a second, time enough for several deaths a run
SLOW = {"median": 180.0, "max_output": 400}
SLOWER = {"median": 320.0, "max_output": 600}
STOPPED_S = 20.0


def kill_one(stage: Stage, title: str, moment: str, rng: random.Random) -> None:
    """kill -9 of one of the processes with this title, once there is one."""
    until(lambda: find_processes(title) or stage.drivers[-1].is_over, what=title)
    assert not stage.drivers[-1].is_over, stage.said
    victim = rng.choice(sorted(find_processes(title)))
    os.kill(victim, signal.SIGKILL)
    stage.note(title.removeprefix("ray::").removesuffix("Actor").lower(), moment)
    until(lambda: victim not in find_processes(title), within_s=10, what=f"the end of {victim}")


@pytest.mark.parametrize(
    ("seed", "kills"), [pytest.param(11, 3, marks=pytest.mark.short), (12, 6), (13, 6), (14, 5), (15, 5)]
)
def test_a_killed_worker_costs_what_it_had_out(make_stage, tables, seed: int, kills: int):
    """kill -9 of a worker, several times a run: the run ends by itself, every item answered and stored once."""
    stage, rng = make_stage(server=SLOW, items=240), random.Random(seed)
    driver = stage.start()
    stage.until_answered(10, driver=driver)
    for number in range(kills):
        is_young = number > 0 and rng.random() < 0.3
        if is_young:  # the one that follows the last victim, while it imports
            until(lambda: len(find_processes(WORKER)) >= stage.workers, what="the next worker")
        else:
            stage.until_answered(rng.randint(12, 32), driver=driver)
        assert not driver.is_over, stage.said
        kill_one(stage, WORKER, "young" if is_young else "at work", rng)

    assert driver.wait() == 0, stage.said
    judge(stage, tables, f"seed {seed}", "kill -9 of a worker")


@pytest.mark.parametrize(("seed", "kills"), [pytest.param(21, 3, marks=pytest.mark.short), (22, 7)])
def test_a_killed_controller_is_replaced(make_stage, tables, seed: int, kills: int):
    """kill -9 of the controller, several times a run: nothing is lost and never more in flight than the limit."""
    stage, rng = make_stage(server=SLOW, items=240), random.Random(seed)
    driver = stage.start()
    stage.until_answered(10, driver=driver)
    for _ in range(kills):
        stage.until_answered(rng.randint(10, 30), driver=driver)
        assert not driver.is_over, stage.said
        kill_one(stage, CONTROLLER, "at work", rng)

    assert driver.wait() == 0, stage.said
    judge(stage, tables, f"seed {seed}", "kill -9 of the controller")
    assert stage.check().paid_twice == 0, "workers live on: nothing of theirs may be lost"


@pytest.mark.parametrize(("ttl_s", "stops"), [pytest.param(3.0, 4, id="ttl 3 s"), pytest.param(15.0, 1, id="ttl 15 s")])
def test_a_worker_that_stands_still_loses_its_lease_and_sends_nothing_more(
    make_stage, tables, ttl_s: float, stops: int
):
    """SIGSTOP for 20 s, then SIGCONT: its permits go to others, it wakes as a zombie, nothing is twice or lost."""
    stage, rng = make_stage(server=SLOWER, workers=2 if stops == 1 else 4), random.Random(31)
    driver = stage.start("--set", f"control.ttl_s={ttl_s:g}")
    stage.until_answered(30, driver=driver)
    began = time.monotonic()
    asleep: dict[int, float] = {}
    for number in range(stops):  # one after another, so that some always work
        until(lambda at=began + 7.0 * number: time.monotonic() >= at, within_s=30, what="the next stop")
        until(lambda: can_stop_another(asleep), what="two workers that are awake")
        victim = rng.choice(awake(asleep))
        os.kill(victim, signal.SIGSTOP)
        asleep[victim] = time.monotonic() + STOPPED_S
        stage.note("worker stopped", f"ttl {ttl_s:g} s")
    until(lambda: not wake(asleep, now=time.monotonic()), what="the end of the pauses")
    assert not driver.is_over, "the run was over before the zombies came back"

    assert driver.wait() == 0, stage.said
    judge(stage, tables, f"ttl {ttl_s:g} s", "SIGSTOP of a worker for 20 s, then SIGCONT")


def awake(asleep: dict[int, float]) -> list[int]:
    return sorted(set(find_processes(WORKER)) - set(asleep))


def can_stop_another(asleep: dict[int, float]) -> bool:
    """Wake those whose time has come; say whether two work, so that one goes on."""
    wake(asleep, now=time.monotonic())
    return len(awake(asleep)) > 1


def wake(asleep: dict[int, float], *, now: float) -> dict[int, float]:
    """SIGCONT to those whose time has come; return those that still stand."""
    for pid in [pid for pid, until_at in asleep.items() if until_at <= now]:
        os.kill(pid, signal.SIGCONT)
        del asleep[pid]
    return asleep


def judge(stage: Stage, tables, run: str, title: str) -> None:
    """Assert that all is there once, within the bound, and that the server never found the limit taken (I4)."""
    found, costs = stage.check(), stage.bills()
    tables.add_bills(title, run, costs)
    paid_twice, bound = total_bound(costs)
    assert found.paid_twice == paid_twice <= bound, costs
    assert not found.over_limit, found.over_limit
    assert found.high_water <= LIMIT
