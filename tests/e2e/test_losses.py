"""The server goes away in the middle: the run goes on by itself and nothing is lost. What is killed: tests/chaos."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from witness import check_run

from evalpipe.sim.ledger import read_ledger
from evalpipe.sim.server import SimServer

pytestmark = pytest.mark.ray

SLOWER = {"median": 60.0, "sigma": 0.4, "max_output": 200}


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
