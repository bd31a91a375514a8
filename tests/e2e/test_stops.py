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
from evalpipe.sim.ledger import read_ledger
from evalpipe.sim.server import SimServer
from evalpipe.store.log import read_state
from evalpipe.store.verify import verify

pytestmark = pytest.mark.ray

ITEMS = 240
LIMIT = 16


@pytest.fixture
def server(tmp_path: Path, repository: Path) -> Iterator[SimServer]:
    """The server outlives its drivers, and so does its ledger."""
    with SimServer(
        "vllm",
        options={"median": 80.0, "sigma": 0.4},
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


def test_kill_9_then_the_same_command(start, tmp_path: Path):
    """A driver killed twice in the middle: every item once, as the server answered it, within the loss bound."""
    runs = tmp_path / "runs"
    for answered in (40, 130):
        driver = start()
        until_answered(runs, answered, driver)
        driver.kill()
        driver.wait()
    last = start()

    assert last.wait(90) == 0, (tmp_path / "driver.log").read_text()
    found = check_run(runs / "run", tmp_path / "ledger.jsonl")
    assert (found.rows, found.answered) == (ITEMS, ITEMS)
    assert found.is_clean
    ledger = read_ledger(tmp_path / "ledger.jsonl", run="run")
    seconds = max(departure.t for departure in ledger.departures.values()) - ledger.arrivals[0].t
    assert found.paid_twice <= 2 * (LIMIT + 2 * ITEMS / seconds)
    assert verify(open_run(runs / "run").store).is_complete


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_drains(start, tmp_path: Path, number: int, code: int):
    """After the first signal what is in flight comes in and is kept: nothing is paid twice when it goes on."""
    driver = start()
    until_answered(tmp_path / "runs", 40, driver)
    driver.send_signal(number)

    assert driver.wait(60) == code
    said = (tmp_path / "driver.log").read_text()
    assert "evalpipe resume" in said
    assert "Traceback" not in said
    assert start().wait(90) == 0
    found = check_run(tmp_path / "runs" / "run", tmp_path / "ledger.jsonl")
    assert (found.answered, found.paid_twice, found.is_clean) == (ITEMS, 0, True)


def test_a_second_driver_is_refused(start, tmp_path: Path):
    """While one driver works, another one for the same run leaves with 75 and sends nothing."""
    first = start()
    until_answered(tmp_path / "runs", 20, first)

    second = start()

    assert second.wait(60) == 75, (tmp_path / "driver.log").read_text()
    assert first.wait(90) == 0
    assert check_run(tmp_path / "runs" / "run", tmp_path / "ledger.jsonl").paid_twice == 0
