"""A whole run into a bucket: driver and workers as processes of their own, the server of the bucket outside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from buckets import s3_environment, s3_server

from evalpipe.api import open_run
from evalpipe.store.log import read_state

pytestmark = [pytest.mark.network, pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(400)]

ITEMS = 60


def test_a_run_in_a_bucket_ends_complete_and_is_read_back(repository: Path, monkeypatch: pytest.MonkeyPatch):
    """Credentials and endpoint reach the workers by the environment alone; the same command again sends nothing."""
    with s3_server() as endpoint:
        environment = s3_environment(endpoint)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-m", "evalpipe.cli.main", "run", "--dataset", "datasets/logic-5k.parquet"]
        command += ["--base-url", "sim://vllm", "--limit", str(ITEMS), "--name", "run", "-o", "s3://bucket/runs"]
        command += ["--display", "none", "--set", "run.workers=2", "--set", "run.flush_s=0.5"]
        command += ["--set", "sim.options.median=24"]

        first, again = (
            subprocess.run(
                command, cwd=repository, env=os.environ | environment, capture_output=True, text=True, timeout=180
            )
            for _ in range(2)
        )
        stored = open_run("s3://bucket/runs/run")
        table, summary, epochs = stored.table(), stored.summary, read_state(stored.store).epoch

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert epochs == 1  # the second driver did not even claim the run
    assert table.num_rows == ITEMS
    assert {"expected": ITEMS, "ok": ITEMS, "failed": 0, "missing": 0}.items() <= summary["items"].items()
