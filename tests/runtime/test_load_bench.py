"""Probes over real HTTP against the simulated server: rows, files, a server that dies, a user who stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from evalpipe.config import SamplingConfig, load_config
from evalpipe.endpoint.preflight import Preflight
from evalpipe.errors import ConfigError, RunFatal
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.slo import Slo
from evalpipe.loadtest.verdict import Verdict
from evalpipe.records import Request
from evalpipe.runtime.load_bench import BenchSettings, Interrupted, LoadBench
from evalpipe.runtime.load_files import LoadFiles
from evalpipe.runtime.load_prompts import MadeUp
from evalpipe.runtime.load_test import allow_files, forced
from evalpipe.runtime.session import look
from evalpipe.sim.process import SimServer

#: Answers after some 0.2 s: 30 tokens at 5 ms and more.
OPTIONS = {"median": 30.0, "sigma": 0.0, "step_s": 0.005}
SETTINGS = BenchSettings(Slo(), SamplingConfig())
OPEN = Probe("open", 20.0, warmup_s=0.5, duration_s=3.0, seed=3)
CLOSED = Probe("closed", 4, warmup_s=0.5, duration_s=2.0, stagger_s=0.4)


def bench(server: SimServer, **given) -> LoadBench:
    config = load_config(flags={"endpoint.base_url": server.base_url}, environ={})
    return LoadBench(look(config.endpoint, config.sampling), MadeUp(64), SETTINGS, **given)


@pytest.mark.network
def test_open_and_closed_rows_over_http(tmp_path: Path):
    """Every request that was due is sent, answered and stored with its stamps; Little's law holds for the users."""
    files = LoadFiles(str(tmp_path), "test")

    with SimServer("vllm", options=OPTIONS) as server, bench(server, on_row=files.add) as running:
        opened, closed = running.run(OPEN), running.run(CLOSED)
    files.finish({"points": [opened.to_dict(), closed.to_dict()]}, "<html>")

    assert opened.measures.offered == sum(OPEN.window.holds(at) for at in OPEN.arrivals())
    assert opened.measures.errors == closed.measures.errors == {}
    assert opened.client.sent is not None and opened.client.sent.count == opened.measures.offered
    assert opened.measures.itl.count > opened.measures.offered
    assert opened.measures.server is not None and opened.measures.preemption_rate == 0
    assert closed.measures.in_flight == pytest.approx(4, abs=0.3)
    stored = pq.read_table(tmp_path / "test/requests/000.parquet")
    assert stored.num_rows == len(OPEN.arrivals())
    assert set(stored["output_tokens"].to_pylist()) == {30}
    assert orjson.loads((tmp_path / "test/result.json").read_bytes())["points"][0]["request_rate"] == 20.0


@pytest.mark.network
def test_a_dying_server_is_a_row_and_an_end():
    """Killed half a second into the row: refusals to the end, the row says `down`, and the test ends with it."""
    rows: list[Point] = []
    with SimServer("vllm", options=OPTIONS) as server:
        stop_at = time.monotonic() + 0.8

        def is_interrupted() -> bool:
            if time.monotonic() > stop_at:
                server.stop()
            return False

        with (
            bench(server, on_row=lambda point, requests: rows.append(point), is_interrupted=is_interrupted) as running,
            pytest.raises(RunFatal, match="went down during the test"),
        ):
            running.run(OPEN)

    assert [row.verdict for row in rows] == [Verdict.DOWN]
    assert "connect_failed" in rows[0].measures.errors


@pytest.mark.network
def test_a_user_who_stops_keeps_the_row():
    """Interrupted in the middle: the row is cut there and told, then the test ends."""
    rows: list[Point] = []

    with (
        SimServer("vllm", options=OPTIONS) as server,
        bench(
            server,
            on_row=lambda point, requests: rows.append(point),
            is_interrupted=_after(1.5),
        ) as running,
        pytest.raises(Interrupted),
    ):
        running.run(Probe("open", 20.0, warmup_s=0.2, duration_s=60.0))

    assert len(rows) == 1
    assert 1.0 <= rows[0].measures.window.length_s < 10
    assert rows[0].measures.offered > 5


def _after(seconds: float) -> Callable[[], bool]:
    """True from so long after the first question on: the server and the client have started by then."""
    asked: list[float] = []

    def is_interrupted() -> bool:
        asked.append(time.monotonic())
        return asked[-1] - asked[0] > seconds

    return is_interrupted


@pytest.mark.network
def test_a_hanging_server_is_down_not_a_hang():
    """It takes requests and never answers: the bound on requests in flight ends the row, and the test, in seconds."""
    rows: list[Point] = []
    with SimServer("vllm", options={"step_s": 500.0}) as server:
        config = load_config(flags={"endpoint.base_url": server.base_url, "endpoint.model": "sim"}, environ={})
        looked = Preflight(server.base_url, "sim", ("sim",), True, "none", (), config.endpoint)
        with (
            LoadBench(
                looked,
                MadeUp(64),
                replace(SETTINGS, most_in_flight=30),
                on_row=lambda point, requests: rows.append(point),
            ) as running,
            pytest.raises(RunFatal, match="unanswered"),
        ):
            running.run(Probe("open", 50.0, warmup_s=0.1, duration_s=60.0))

    (row,) = rows
    assert row.verdict is Verdict.DOWN
    assert row.measures.unfinished == row.measures.offered > 10


def test_folders_are_never_used_twice(tmp_path: Path):
    """A second test of the same name gets a folder of its own."""
    first = LoadFiles(str(tmp_path), "test")
    first.finish({}, "<html>")

    assert LoadFiles(str(tmp_path), "test").url.endswith("test-2")


@pytest.mark.parametrize(
    ("flavour", "extra"),
    [("vllm", {"ignore_eos": True, "min_tokens": 64}), ("sglang", {"ignore_eos": True}), ("none", {})],
)
def test_answers_are_made_so_long_where_the_server_obeys(flavour: str, extra: dict[str, object]):
    """vLLM knows both names, others one; an unknown server gets none that it could refuse."""
    looked = Preflight("http://h/v1", "m", (), True, flavour, (), load_config(environ={}).endpoint)

    sampling = forced(SamplingConfig(), 64, looked)

    assert (sampling.max_tokens, sampling.extra_body) == (64, extra)
    assert forced(SamplingConfig(), None, looked) == SamplingConfig()


def test_more_files_than_the_system_allows_are_refused():
    """Told before the test, with what would do."""
    with pytest.raises(ConfigError, match="lower --most-in-flight"):
        allow_files(10**12)


@dataclass(frozen=True)
class Tokenising:
    """Prompts that cost the client 40 ms of CPU each, as counting a long history does."""

    prompts: MadeUp

    def __call__(self, number: int) -> Request:
        until = time.process_time() + 0.04
        while time.process_time() < until:
            pass
        return self.prompts(number)


@pytest.mark.network
def test_a_slowed_client_is_flagged_not_reported_as_a_slow_server():
    """Twenty requests a second of 40 ms each on the sending side: the row is invalid, and says why."""
    with SimServer("vllm", options=OPTIONS) as server:
        config = load_config(flags={"endpoint.base_url": server.base_url}, environ={})
        looked = look(config.endpoint, config.sampling)
        with LoadBench(looked, Tokenising(MadeUp(64)), SETTINGS) as running:
            row = running.run(OPEN)

    assert row.verdict is Verdict.INVALID
    assert any("sent late" in note for note in row.notes)
    assert row.measures.ttft.seconds(99.0) > row.measures.ttft_sent.seconds(99.0)
