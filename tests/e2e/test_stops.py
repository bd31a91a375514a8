"""Killed, interrupted, and gone on with: nothing lost beyond the bound, nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from witness import check_run

from evalpipe import open_run
from evalpipe.sim.ledger import Ledger, read_ledger
from evalpipe.sim.server import SimServer
from evalpipe.store.log import read_state
from evalpipe.store.verify import verify

pytestmark = pytest.mark.ray

ITEMS = 400
LIMIT = 16


@pytest.fixture
def server(tmp_path: Path, repository: Path) -> Iterator[SimServer]:
    """The server outlives its drivers, and so does its ledger."""
    with SimServer(
        "vllm",
        options={"median": 60.0, "sigma": 0.4},
        dataset=repository / "datasets/logic-5k.parquet",
        ledger=tmp_path / "ledger.jsonl",
    ) as started:
        yield started


@pytest.fixture
def start(server: SimServer, ray_head: str, tmp_path: Path, repository: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Return a function that starts the driver as a process of its own; the same command each time."""
    command = [
        *(sys.executable, "-m", "evalpipe.cli.main", "run", "--base-url", server.base_url, "--model", "sim"),
        *("--dataset", str(repository / "datasets/logic-5k.parquet"), "--limit", str(ITEMS), "--workers", "2"),
        *("-o", str(tmp_path / "runs"), "--name", "run", "--display", "plain", "--concurrency", str(LIMIT)),
        *("--set", "run.flush_s=0.5", "--set", "endpoint.trace_header=true"),
    ]

    def popen(*more: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "RAY_ADDRESS": ray_head}
        with (tmp_path / "driver.log").open("ab") as log:
            return subprocess.Popen([*command, *more], stdout=log, stderr=log, env=environment)

    return popen


def until_answered(runs: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    """Wait until the log holds so many answers. The test's own time limit bounds it."""
    while driver.poll() is None:
        try:
            if read_state(open_run(runs / "run").store).counts.ok >= count:
                return
        except Exception:  # not begun yet
            pass
        time.sleep(0.1)  # another process is watched; nothing of it can be awaited
    raise AssertionError("the driver ended before it was stopped")


def test_stopped_three_ways_and_gone_on_with(start, tmp_path: Path):
    """Refused while another works, drained by a signal, killed: every item once, as the server answered it."""
    runs, ledger = tmp_path / "runs", tmp_path / "ledger.jsonl"
    first = start()
    until_answered(runs, 20, first)
    assert start().wait(60) == 75, "a second driver must leave while the first works"
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert check_run(runs / "run", ledger).paid_twice == 0, "a drained run has nothing to pay again"
    drained = read_state(open_run(runs / "run").store).counts.ok
    assert drained < ITEMS

    killed = start()
    until_answered(runs, drained + 30, killed)
    killed.kill()
    killed.wait()
    last = start()

    assert last.wait(90) == 0
    said, found = (tmp_path / "driver.log").read_text(), check_run(runs / "run", ledger)
    assert "evalpipe resume" in said and "Traceback" not in said
    assert (found.rows, found.answered) == (ITEMS, ITEMS)
    assert found.is_clean, found
    assert found.paid_twice <= LIMIT + 2 * rate(read_ledger(ledger, run="run"))
    assert verify(open_run(runs / "run").store).is_complete


def rate(ledger: Ledger) -> float:
    """Answers a second while answers came: the most in any two seconds, halved."""
    times = sorted(departure.t for departure in ledger.departures.values())
    return max(sum(t <= other < t + 2 for other in times) for t in times) / 2
