"""An item that kills every worker that has it is set aside; all others are answered."""

from __future__ import annotations

import os
import signal

import pytest
from chaos.leftovers import find_processes
from chaos.watching import until

from evalpipe import open_run

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(300)]

MOST_DEATHS = 8


@pytest.mark.short
def test_an_item_that_kills_its_workers_is_set_aside(make_stage, tables):
    """The only worker is killed whenever that item is in the server: exit 3, and one failure of kind poison."""
    stage = make_stage(items=80, workers=1)
    driver = stage.start()
    stage.until_answered(12, driver=driver)
    poison = sorted(stage.tail.inside.values())[0]
    deaths = 0

    def is_due() -> bool:
        return driver.is_over or poison in stage.tail.look().inside.values()

    while deaths < MOST_DEATHS:
        until(is_due, what=f"item {poison} or the end")
        if driver.is_over:
            break
        for pid in find_processes("ray::WorkerActor"):
            os.kill(pid, signal.SIGKILL)
        stage.note("worker", "poison in flight")
        deaths += 1
        until(lambda: poison not in stage.tail.look().inside.values(), within_s=30, what="its request to break off")

    assert driver.wait() == 3, stage.said
    failed = [row for row in open_run(stage.run).table().to_pylist() if row["status"] == "failed"]
    assert [(row["item_id"], row["error_kind"]) for row in failed] == [(poison, "poison")]
    found = stage.check(failed=1)
    tables.add("poison", items=stage.items, answered=found.answered, deaths=deaths, paid_twice=found.paid_twice)
