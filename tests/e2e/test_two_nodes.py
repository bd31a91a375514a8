"""One run on two Ray nodes of this machine; the second one is killed in the middle."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from witness import check_run

from evalpipe import open_run
from evalpipe.sim.ledger import read_ledger
from evalpipe.sim.server import SimServer
from evalpipe.store.log import read_state
from evalpipe.store.rows import result_files
from evalpipe.store.verify import verify

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

ITEMS, LIMIT = 200, 16
#: a second of delay and short answers: both workers are up long before the end, and cores do not matter
SLOW = {"overhead_s": 1.0, "median": 30.0, "sigma": 0.4}
#: a dead node is noticed within two seconds instead of fourteen; names of Ray's own settings
QUICK_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}


@dataclass(frozen=True)
class TwoNodes:
    """Two raylets under one head, made with Ray's own cluster utility. This process joins neither."""

    cluster: Any
    second: Any

    @property
    def ids(self) -> set[str]:
        return {self.cluster.head_node.node_id, self.second.node_id}

    def homes_of_workers(self) -> set[str]:
        """Node ids of the live worker actors, as Ray's own tables have them."""
        actors = self.cluster.global_state.actor_table(None).values()
        return {
            actor["Address"]["NodeID"]
            for actor in actors
            if actor["ActorClassName"] == "WorkerActor" and actor["State"] == "ALIVE"
        }

    def kill_second_raylet(self) -> None:
        """kill -9, and reap it: a defunct raylet is not seen as dead by its workers."""
        raylet = self.second.all_processes["raylet"][0].process
        os.kill(raylet.pid, signal.SIGKILL)
        raylet.wait()


def free_port() -> int:
    """Ray's API server takes a port without a dashboard too; its usual one may be another Ray's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "dashboard_port": free_port(), "_system_config": QUICK_CHECKS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield TwoNodes(cluster, cluster.add_node(num_cpus=1))
    finally:
        cluster.shutdown()


@pytest.fixture
def server(tmp_path: Path, repository: Path) -> Iterator[SimServer]:
    with SimServer(
        "vllm",
        options=SLOW,
        dataset=repository / "datasets/logic-5k.parquet",
        ledger=tmp_path / "ledger.jsonl",
    ) as started:
        yield started


@pytest.fixture
def driver(nodes: TwoNodes, server: SimServer, tmp_path: Path, repository: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The driver in a process of its own: Ray allows one cluster a process, and pytest may be in another."""
    command = [
        *(sys.executable, "-m", "evalpipe.cli.main", "run", "--base-url", server.base_url, "--model", "sim"),
        *("--dataset", str(repository / "datasets/logic-5k.parquet"), "--limit", str(ITEMS), "--workers", "2"),
        *("-o", str(tmp_path / "runs"), "--name", "run", "--display", "plain", "--concurrency", str(LIMIT)),
        *("--set", "run.flush_s=0.5", "--set", "control.ttl_s=3", "--set", "endpoint.trace_header=true"),
    ]
    with (tmp_path / "driver.log").open("wb") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "RAY_ADDRESS": nodes.cluster.address}
        )
    yield started
    if started.poll() is None:
        started.kill()
        started.wait()


def senders(folder: Path) -> set[str]:
    """Worker processes that have written a file of answers."""
    files = [file.info.path for file in result_files(read_state(open_run(folder).store))] if exists(folder) else []
    return {name for name in ("w0.1", "w1.1") if any(f"-{name}-" in path for path in files)}


def exists(folder: Path) -> bool:
    return (folder / "spec.json").exists()


def until(is_so: Callable[[], bool], driver: subprocess.Popen[bytes]) -> None:
    while not is_so():
        assert driver.poll() is None, "the driver ended before the node was killed"
        time.sleep(0.1)  # another process is watched; nothing of it can be awaited


def test_a_lost_node_costs_only_what_it_had_in_flight(nodes, driver, tmp_path: Path):
    """Workers sit on both nodes; kill -9 of one node's raylet: the same command completes, every item exactly once."""
    folder, ledger = tmp_path / "runs/run", tmp_path / "ledger.jsonl"
    until(lambda: senders(folder) == {"w0.1", "w1.1"}, driver)
    homes = nodes.homes_of_workers()
    nodes.kill_second_raylet()
    code = driver.wait(60)

    said = (tmp_path / "driver.log").read_text()
    found, book = check_run(folder, ledger), read_ledger(ledger, run="run")
    assert code == 0, said
    assert homes == nodes.ids
    assert (found.rows, found.answered) == (ITEMS, ITEMS)
    assert found.is_clean, found
    assert found.paid_twice <= LIMIT
    assert ITEMS <= len(book.arrivals) <= ITEMS + LIMIT
    assert verify(open_run(folder).store).is_complete
