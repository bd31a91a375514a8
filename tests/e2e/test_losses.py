"""A worker or the server goes away in the middle: the run goes on by itself and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from witness import check_run

from evalpipe.sim.ledger import read_ledger
from evalpipe.sim.server import SimServer
from evalpipe.store.verify import verify

pytestmark = pytest.mark.ray

SLOWER = {"median": 60.0, "sigma": 0.4, "max_output": 200}


def worker_pids() -> list[int]:
    """Processes of worker actors, by the name that Ray gives them."""
    commands = {path.parent.name: path for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [int(pid) for pid, path in commands.items() if _read(path).startswith(b"ray::WorkerActor")]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def test_a_killed_worker_costs_its_requests_only(run_it):
    """kill -9 of one of two workers: its items go to others, everything once, paid twice at most what it had out."""
    killed: list[int] = []

    def on_progress(progress) -> None:
        if not killed and progress.ok >= 60:
            killed.extend(worker_pids()[:1])
            os.kill(killed[0], signal.SIGKILL)

    run = run_it(
        limit=300, run__workers=2, sim__options=SLOWER, control__law="fixed", control__start=24, show=on_progress
    )

    found = check_run(run.url)
    assert killed, "the run was over before a worker could be killed"
    assert (run.exit_code, found.rows, found.answered, found.is_clean) == (0, 300, 300, True)
    assert found.paid_twice <= 24 + 60  # in flight, and two seconds of its answers
    assert verify(run.store).is_complete


def test_a_server_that_restarts_costs_no_item(run_it, tmp_path: Path, repository: Path):
    """Five seconds without a server: no failed item, few requests meanwhile, and the same run goes on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ledger = tmp_path / "ledger.jsonl"

    def serve() -> SimServer:
        dataset = repository / "datasets/logic-5k.parquet"
        return SimServer("vllm", options=SLOWER, port=port, dataset=dataset, ledger=ledger)

    servers, gone = [serve()], threading.Event()

    def restart() -> None:
        servers.pop().stop()
        time.sleep(5)  # the outage itself
        servers.append(serve())

    def on_progress(progress) -> None:
        if progress.ok >= 40 and not gone.is_set():
            gone.set()
            threading.Thread(target=restart).start()

    url = servers[0].base_url
    try:
        run = run_it(
            limit=200, endpoint__base_url=url, endpoint__model="sim", endpoint__trace_header=True, show=on_progress
        )
    finally:
        servers.pop().stop()

    found = check_run(run.url, ledger)
    assert gone.is_set()
    assert (run.exit_code, found.answered) == (0, 200)
    assert found.is_clean
    assert len(read_ledger(ledger, run="run").arrivals) < 200 + 80
