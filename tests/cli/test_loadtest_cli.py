"""`evalpipe loadtest` from the outside: what is printed, stored and returned, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evalpipe.cli.loadtest import app
from evalpipe.cli.loadtest_display import make_load_display
from evalpipe.errors import ConfigError
from evalpipe.loadtest.probe import Probe
from evalpipe.sim.bench import VirtualBench
from evalpipe.sim.profiles import profile

QUICK = ["--base-url", "sim://vllm", "--set", "sim.options={median: 30.0, sigma: 0.0}", "--prompt-tokens", "64"]

START = "import sys; from evalpipe.cli.loadtest import app; app(sys.argv[1:])"


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


@pytest.mark.network
def test_open_prints_a_row_a_rate_and_stores_it(tmp_path: Path):
    """Two rates: two rows in the table, two files of requests, one result with vLLM's names."""
    said = call("open", "--rate", "5,10", "--warmup", "0.5", "--duration", "2", "-o", str(tmp_path), "--json", *QUICK)

    assert said.exit_code == 0, said.output
    body = json.loads((tmp_path / "loadtest-sim/result.json").read_text())
    assert [row["request_rate"] for row in body["points"]] == [5.0, 10.0]
    assert all(row["median_ttft_ms"] > 0 and "dispersion" in row for row in body["points"])
    assert len(list((tmp_path / "loadtest-sim/requests").glob("*.parquet"))) == 2
    assert "open 5.00/s" in said.stderr
    assert "open 10.00/s" in (tmp_path / "loadtest-sim/report.html").read_text()
    assert json.loads(said.stdout) == body


@pytest.mark.network
def test_closed_tells_requests_a_second_beside_the_users(tmp_path: Path):
    """R = N / T: three users are not three requests a second."""
    said = call("closed", "--users", "3", "--warmup", "0.5", "--duration", "2", "-o", str(tmp_path), *QUICK)

    assert said.exit_code == 0, said.output
    (row,) = json.loads((tmp_path / "loadtest-sim/result.json").read_text())["points"]
    assert row["max_concurrency"] == 3
    assert row["in_flight"] == pytest.approx(3, abs=0.3)
    assert "R = N / T" in said.stdout


@pytest.mark.network
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path):
    """Interrupted once its first row is there: exit 130, that row stored, and the second as far as it had come."""
    command = [sys.executable, "-c", START, "open", "--rate", "5,6", "--warmup", "0", "--duration", "3"]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path), *QUICK, "--display", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60)

    assert process.returncode == 130, complaints
    assert first["request_rate"] == 5.0
    body = json.loads((tmp_path / "loadtest-sim/result.json").read_text())
    assert [row["request_rate"] for row in body["points"]] in ([5.0], [5.0, 6.0])
    assert body["points"][0]["duration"] == 3
    assert all(row["duration"] < 3 for row in body["points"][1:])
    assert body["stopped"] == "stopped by a signal"
    assert f"{len(body['points'])} rows are kept" in complaints


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["open", "--rate", "fast"], "--rate takes numbers above 0"),
        (["open", "--rate", "0"], "--rate takes numbers above 0"),
        (["closed", "--users", "-4"], "--users takes numbers above 0"),
        (["open", "--rate", "5", "--arrivals", "gamma"], "--arrivals must be one of poisson, constant, got 'gamma'"),
        (["open", "--rate", "5", "--slo", "itl:5"], "an SLO is NAME:MILLISECONDS"),
        (["calibrate", "--prompt-sigma", "0.5"], "calibrate needs prompts of one length"),
        (["open", "--rate", "5", "--display", "loud"], "--display must be one of rich, plain, json, none, got 'loud'"),
    ],
)
def test_mistakes_are_told_before_anything_starts(arguments: list[str], message: str):
    """What was wrong, what was given, what would do."""
    said = call(*arguments)

    assert isinstance(said.exception, ConfigError)
    assert message in str(said.exception)


def test_a_terminal_is_told_what_runs_now(capsys: pytest.CaptureFixture[str]):
    """The row that is under way and its length, then the row itself, as wide as it is."""
    probe = Probe("open", 5.0, warmup_s=2.0, duration_s=8.0)
    display = make_load_display("rich")

    display.begin(probe)
    display.row(VirtualBench(profile("table")).run(probe))
    display.close()

    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("open 5.00/s ") and line.rstrip().endswith(("steady", "idle")) for line in lines)
    assert lines[0].split()[:2] == ["req/s", "tok/s"]


@pytest.mark.parametrize("command", ["closed", "open", "sweep", "capacity", "calibrate"])
def test_every_command_has_the_common_options(command: str):
    """One declaration serves all five."""
    said = call(command, "--help")

    assert all(option in said.output for option in ("--base-url", "--slo", "--seed", "--most-in-flight", "--json"))


@pytest.mark.network
def test_json_lines_stay_json_to_the_end(tmp_path: Path):
    """With --display json every line of stdout is an object: the rows, then the result."""
    arguments = ["--users", "2", "--warmup", "0.2", "--duration", "1", "-o", str(tmp_path), "--display", "json"]

    said = call("closed", *arguments, *QUICK)

    assert [json.loads(line)["event"] for line in said.stdout.splitlines()] == ["row", "result"]
