"""What our load-test client costs and how true its stamps are: 64 paced streams against the server's own stamps.

    python benchmarks/loadgen.py [--streams 64] [--rate 8000] [--seconds 10]

A bare server in a process of its own writes one token an event, each stream at its own even pace, and keeps the instant
of each write; the client is LoadLoop on the Endpoint, in this process, on one core. Both read CLOCK_MONOTONIC, which is
one clock on one machine. Compared: the P99 of all gaps between tokens, ours against the server's. `guidellm` is not
run here: it pulls torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from evalpipe.config import load_config
from evalpipe.endpoint.preflight import Preflight
from evalpipe.loadtest.arrivals import gaps_of
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.records import Request
from evalpipe.loadtest.slo import Slo
from evalpipe.runtime.load_bench import BenchSettings, LoadBench
from evalpipe.runtime.load_prompts import MadeUp

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(delta: dict[str, Any], finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    body: dict[str, Any] = {"id": "x", "object": "chat.completion.chunk", "model": "bare", "choices": choices}
    return b"data: " + json.dumps(body | ({"usage": usage} if usage else {})).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class BareServer:
    """Answers every POST with `tokens` events, gap_s apart; keeps the instants of its writes by the prompt's head."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self.tokens, self.gap_s = tokens, gap_s
        self.written: dict[str, list[float]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                body = json.loads(await reader.readexactly(length))
                await self._answer(body["messages"][0]["content"].partition(":")[0], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client hung up
        finally:
            writer.close()

    async def _answer(self, name: str, writer: asyncio.StreamWriter) -> None:
        stamps = self.written[name] = []
        writer.write(HEAD)
        token = framed(event({"content": "word"}))
        due_at = time.monotonic()
        for _ in range(self.tokens):
            if (wait_s := due_at - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
                if writer.is_closing():
                    raise ConnectionResetError
            stamps.append(time.monotonic())
            writer.write(token)
            due_at += self.gap_s
        usage = {"prompt_tokens": 1, "completion_tokens": self.tokens}
        writer.write(framed(event({}, "stop", usage)) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


def run_server(pipe: Connection, tokens: int, gap_s: float) -> None:
    """Serve until told to stop, then hand over the stamps."""

    async def main() -> None:
        bare = BareServer(tokens, gap_s)
        server = await asyncio.start_server(bare.serve, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        while not pipe.poll():  # noqa: ASYNC110  # a pipe has no event here
            await asyncio.sleep(0.1)
        pipe.send(bare.written)
        server.close()

    uvloop.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=8_000.0, help="tokens/s of all streams")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    gap_s = given.streams / given.rate
    tokens = round(2.0 / gap_s)  # a stream lasts two seconds
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=run_server, args=(theirs, tokens, gap_s))
    server.start()
    point, requests = test(ours.recv(), given.streams, given.seconds)
    ours.send("stop")
    report(point, requests, ours.recv())
    server.join()


def test(port: int, streams: int, seconds: float) -> tuple[Point, list[Request]]:
    url = f"http://127.0.0.1:{port}/v1"
    config = load_config(flags={"endpoint.base_url": url, "endpoint.model": "bare"}, environ={})
    looked = Preflight(url, "bare", ("bare",), True, "none", (), config.endpoint)
    kept: list[Request] = []
    with LoadBench(
        looked, MadeUp(64), BenchSettings(Slo(), config.sampling), on_row=lambda point, requests: kept.extend(requests)
    ) as bench:
        point = bench.run(Probe("closed", streams, 3.0, seconds, stagger_s=2.0))
    return point, kept


def report(point: Point, requests: list[Request], written: dict[str, list[float]]) -> None:
    """Compare the pooled gaps. Events that came in one read have one stamp, here as in any client."""
    ours, theirs = [], []
    for number, request in enumerate(requests):
        if request.is_ok and point.measures.window.holds(request.sent_at):
            ours += gaps_of(request.chunks_at)
            theirs += gaps_of(written[f"0.{number}"])
    row, client = point.measures, point.client
    print(f"{row.output_tokens_per_s:,.0f} tokens/s in {row.in_flight:.0f} streams; load {os.getloadavg()[0]:.1f}")
    print(f"client CPU {100 * client.cpu_share:.0f} % of a core, loop lag P99 {1000 * client.lag_p99_s:.1f} ms")
    print(f"events {len(theirs):,}, stamped apart {len(ours):,}")
    print(f"ITL P99: client {1000 * p99(ours):.2f} ms, server {1000 * p99(theirs):.2f} ms")
    print(f"verdict: {point.verdict.value} {'; '.join(point.notes)}")


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))] if values else float("nan")


if __name__ == "__main__":
    main()
