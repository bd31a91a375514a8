"""A node's raylet is killed, five times a run, and comes back; the run goes on by itself (K2)."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from chaos import leftovers
from chaos.clusters import cluster
from chaos.stage import total_bound
from chaos.watching import until

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(300)]

WORKER = "ray::WorkerActor"
#: two and a half seconds an answer, 3 answers a second: time enough for nodes to come back five times
SERVER, LIMIT = {"median": 320.0, "max_output": 600}, 8


@pytest.fixture
def head() -> Iterator[Any]:
    with cluster(cpus=1) as made:
        yield made


def raylet_of(node: Any) -> Any:
    return node.all_processes["raylet"][0].process


def test_a_killed_raylet_costs_what_its_workers_had_out(head, make_stage, tables):
    """kill -9 of the second node's raylet once it works, five times: every item once, no command given again."""
    stage, rng = make_stage(server=SERVER, ray_address=head.address), random.Random(41)
    node = head.add_node(num_cpus=1)
    driver = stage.start(limit=LIMIT)
    for _ in range(5):
        raylet = raylet_of(node)
        until(
            lambda pid=raylet.pid: leftovers.find_processes(WORKER, children_of=pid) or driver.is_over,
            what="a worker on the second node",
        )
        stage.until_answered(rng.randint(8, 20), driver=driver)
        assert not driver.is_over, stage.said
        os.kill(raylet.pid, signal.SIGKILL)
        stage.note("raylet", "its worker at work", dying_s=2.0)  # a worker looks after its raylet once a second
        raylet.wait()  # a raylet that nobody reaped is not seen as dead by its workers
        head.remove_node(node, allow_graceful=False)
        node = head.add_node(num_cpus=1)

    code = driver.wait()
    head.remove_node(node)
    assert code == 0, stage.said
    found, costs = stage.check(), stage.bills()
    tables.add_bills("kill -9 of a node's raylet", "seed 41", costs)
    paid_twice, bound = total_bound(costs)
    assert found.paid_twice == paid_twice <= bound, costs
    assert not found.over_limit and found.high_water <= LIMIT
