"""What crosses from worker to driver and controller, and what a worker writes, holds no key, whatever a server says.

The worker's loop and the openai client are real; the server repeats the key that it was sent in every error.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from endpoint.rawserver import STREAM, response, serve
from security.canary import files_with

from evalpipe.config import parse_config
from evalpipe.control.build import build_law
from evalpipe.control.core import ControlCore
from evalpipe.control.lease import Lease, Report
from evalpipe.errors import EndpointError, Failure
from evalpipe.records import Example, Shard, WorkItem
from evalpipe.runtime.messages import Poll, PollReply, WorkerSpec
from evalpipe.runtime.worker import WorkerLoop

CANARY = "canary-4711-key-of-this-test"
PATIENCE_S = 60.0  # a bound only: it takes two seconds


def echo(status: str, code: str) -> bytes:
    """An error that repeats the key where a server would: message, code, headers."""
    body = {"error": {"message": f"bad key {CANARY}, got Authorization: Bearer {CANARY}", "code": code, "type": CANARY}}
    return response(body, status=status, headers=f"X-Request-Id: {CANARY}\r\nX-Debug: {CANARY}\r\n")


#: One error of each of the four classes, then an answer.
REPLIES = [
    (echo("500 Internal Server Error", CANARY),),
    (echo("400 Bad Request", "too_long"),),
    (echo("429 Too Many Requests", "rate_limit_exceeded"),),
    STREAM,
]
FATAL = [(echo("401 Unauthorized", "invalid_api_key"),)]


def spec(folder: Path, url: str) -> WorkerSpec:
    config = parse_config(
        {"run": {"flush_s": 0.01}, "endpoint": {"base_url": url, "api_key_env": "CANARY_KEY", "max_attempts": 2}}
    )
    return WorkerSpec(
        name="w0",
        incarnation=1,
        run_name="r",
        config=config,
        base_url=url,
        model="m",
        store_url=str(folder),
        writer="0" * 32,
        writer_epoch=1,
        spec_sha256="f" * 64,
        cap=4,
        needs_key=True,
    )


class Crossing:
    """Everything that went between the processes, pickled as Ray would."""

    def __init__(self) -> None:
        self.core = ControlCore(build_law("fixed", start=2), exchange_s=0.005)
        self.pickles: list[bytes] = []

    def cross(self, value: Any) -> Any:
        self.pickles.append(pickle.dumps(value))
        return value

    async def exchange(self, report: Report) -> Lease:
        return self.cross(self.core.exchange(self.cross(report), now=time.monotonic()))

    async def run(self, given: WorkerSpec, items: int) -> PollReply:
        """Work until every item is in a file or the run cannot go on."""
        loop = WorkerLoop(self.cross(given), self.exchange)
        loop.start()
        work = [WorkItem(Example(n, f"i{n}", "", "x", {"question": f"{n}?"})) for n in range(items)]
        try:
            reply = await loop.poll(self.cross(Poll([Shard(1, work)])))
            async with asyncio.timeout(PATIENCE_S):
                while reply.fatal is None and (reply.counters.finished < items or reply.unwritten):
                    await asyncio.sleep(0.01)
                    reply = self.cross(await loop.poll(Poll()))
            return reply
        finally:
            await loop.stop()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", CANARY)


def work(folder: Path, replies: list[Any], *, items: int) -> tuple[Crossing, PollReply, list[str | None]]:
    """Run a worker against a server; returns what crossed, the last reply, and the Authorization the server got."""

    async def main() -> tuple[Crossing, PollReply, list[str | None]]:
        async with serve(*replies) as server:
            crossing = Crossing()
            reply = await crossing.run(spec(folder, server.url), items)
            return crossing, reply, [server.header("Authorization")]

    return asyncio.run(main())


@pytest.mark.network
def test_no_key_crosses_or_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Retried, refused, paused, answered: no pickle, no file, no log line holds the key; and the server did get it."""
    with caplog.at_level(logging.DEBUG):
        crossing, reply, sent = work(tmp_path / "run", REPLIES, items=4)

    assert sent == [f"Bearer {CANARY}"]
    assert reply.counters.finished == 4
    assert reply.counters.failures, "an error must have been met, or nothing was tested"
    assert len(crossing.pickles) > 3
    assert not [data for data in crossing.pickles if CANARY.encode() in data]
    assert list((tmp_path / "run").rglob("*.parquet"))
    assert files_with(tmp_path / "run", CANARY) == []
    assert CANARY not in caplog.text


@pytest.mark.network
def test_a_refused_key_is_not_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A server that says which key it refuses: the run ends, and the driver is told why without it."""
    with caplog.at_level(logging.DEBUG):
        crossing, reply, _ = work(tmp_path / "run", FATAL, items=1)

    assert reply.fatal is not None and reply.fatal.kind == "auth"
    assert not [data for data in crossing.pickles if CANARY.encode() in data]
    assert CANARY not in caplog.text


@pytest.mark.parametrize("kind", EndpointError.__subclasses__())
def test_an_error_of_ours_survives_the_crossing(kind: type[EndpointError]):
    """openai's exceptions hold the key and cannot all be unpickled; ours are a failure and nothing else."""
    error = kind(Failure("timeout", message="slow"))

    again = pickle.loads(pickle.dumps(error))

    assert (type(again), again.failure) == (kind, error.failure)
