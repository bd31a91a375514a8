"""What the whole pipeline (Ray, leases, store, scores) costs in client CPU, beside bare loops of the same client.

    python benchmarks/overhead.py [--items 2000 20000] [--limit 64]

All send the same requests to the same simulated server without delay (profile `instant`). Two bare loops: the openai
client called as its documentation says (chat.completions.create; streams read as raw bytes), and our own Endpoint
around the same client, which leaves out what the SDK does around a request and builds no response objects.

CPU is summed over all processes that a case starts (Linux, /proc), and taken as the slope between two sizes, so that
start-up (Ray, imports) does not count. Ratio: bare over pipeline, 1 is free, target >= 0.80.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evalpipe.records import Request
from evalpipe.sim.server import SimServer

Loop = tuple[Callable[[Request], Awaitable[Any]], Callable[[], Awaitable[None]]]  # send one, close

DATASET = Path(__file__).parents[1] / "datasets/logic-5k.parquet"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.05
OTHER = "Ray itself"


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds by kind of process, and the seconds the sending took."""

    cpu_s: dict[str, float]
    wall_s: float

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())


class CpuMeter:
    """Sums the CPU time of all processes started since, but for the ones excluded."""

    def __init__(self, *, exclude: Sequence[int]) -> None:
        self._exclude = {*exclude, os.getpid()}
        self._old = set(_pids())
        self._seen: dict[int, tuple[str, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> CpuMeter:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def by_kind(self) -> dict[str, float]:
        kinds: dict[str, float] = {}
        for kind, seconds in self._seen.values():
            kinds[kind] = kinds.get(kind, 0.0) + seconds
        return kinds

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for pid in _pids():
                if pid not in self._old and pid not in self._exclude and (found := _read(pid)) is not None:
                    kind, seconds = found
                    named = self._seen.get(pid, (OTHER, 0.0))[0]  # Ray renames its processes while they live
                    self._seen[pid] = (kind if named == OTHER else named, seconds)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def _read(pid: int) -> tuple[str, float] | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    return _kind(command), (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _kind(command: str) -> str:
    for mark, kind in (("ray::Worker", "worker"), ("ray::Controller", "controller"), ("evalpipe", "driver")):
        if mark in command:
            return kind
    return "bare loop" if "overhead.py" in command else OTHER


def pipeline(server: SimServer, *, items: int, limit: int, stream: str) -> Cost:
    """Run the command line on a dataset of so many items."""
    with tempfile.TemporaryDirectory() as folder, CpuMeter(exclude=[server.pid]) as meter:
        dataset = _dataset(Path(folder), items)
        command = [
            *(sys.executable, "-m", "evalpipe.cli.main", "run", "--base-url", server.base_url, "--model", "sim"),
            *("--dataset", str(dataset), "-o", f"{folder}/runs", "--name", "run", "--workers", "1", "--json"),
            *("--concurrency", str(limit), "--set", f"endpoint.stream={stream}", "--set", "control.ttl_s=60"),
        ]
        done = subprocess.run(command, capture_output=True, check=True)
        rate = json.loads(done.stdout)["rate"]
    return Cost(meter.by_kind(), rate["elapsed_s"] - rate["first_request_s"])


def bare(server: SimServer, *, items: int, limit: int, stream: str, client: str) -> Cost:
    """Run a plain asyncio loop in a process of its own. client: see LOOPS."""
    with CpuMeter(exclude=[server.pid]) as meter:
        command = [sys.executable, __file__, "--bare", server.base_url, "--stream", stream, "--client", client]
        command += ["--items", str(items), "--limit", str(limit)]
        done = subprocess.run(command, capture_output=True, check=True)
    return Cost(meter.by_kind(), float(done.stdout))


def run_bare(base_url: str, *, items: int, limit: int, stream: str, client: str) -> None:
    """The bare loop: N tasks that send one request after another. Prints the seconds it took."""
    import uvloop

    from evalpipe.config import DatasetConfig, PromptConfig
    from evalpipe.data import open_dataset
    from evalpipe.prompt import Prompter
    from evalpipe.records import WorkItem

    prompter = Prompter(PromptConfig())
    with tempfile.TemporaryDirectory() as folder:
        path = str(_dataset(Path(folder), items))
        with open_dataset(DatasetConfig(path=path)) as dataset:
            requests = iter([prompter.request(WorkItem(dataset.example(int(i)))) for i in dataset.order])

    async def main() -> float:
        send, close = LOOPS[client](base_url, limit=limit, stream=stream)

        async def send_all() -> None:
            for request in requests:
                await send(request)

        began = time.perf_counter()
        await asyncio.gather(*(send_all() for _ in range(limit)))
        seconds = time.perf_counter() - began
        await close()
        return seconds

    print(uvloop.run(main()))


def as_documented(base_url: str, *, limit: int, stream: str) -> Loop:
    """The openai client on its aiohttp transport, as a careful user writes it."""
    import httpx2
    import orjson
    from openai import AsyncOpenAI, DefaultAioHttpClient

    pool = httpx2.Limits(max_connections=2 * limit, max_keepalive_connections=2 * limit)
    openai = AsyncOpenAI(
        base_url=base_url, api_key="none", max_retries=0, http_client=DefaultAioHttpClient(limits=pool, timeout=60)
    )

    async def send(request: Request) -> str | None:
        done = await openai.chat.completions.create(model="sim", messages=request.messages, max_tokens=2048)
        return done.choices[0].message.content

    async def send_streaming(request: Request) -> str:
        text, rest = "", b""
        async with openai.chat.completions.with_streaming_response.create(
            model="sim", messages=request.messages, max_tokens=2048, stream=True, stream_options={"include_usage": True}
        ) as response:
            async for chunk in response.iter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        choices = orjson.loads(line[6:])["choices"]
                        text += (choices[0]["delta"].get("content") or "") if choices else ""
        return text

    return (send_streaming if stream == "all" else send), openai.close


def our_endpoint(base_url: str, *, limit: int, stream: str) -> Loop:
    """The client as evalpipe's workers use it."""
    from evalpipe.config import EndpointConfig, SamplingConfig
    from evalpipe.endpoint.client import Endpoint

    config = EndpointConfig(stream=stream)  # type: ignore[arg-type]
    endpoint = Endpoint(config, SamplingConfig(), model="sim", base_url=base_url, cap=limit)
    return partial(endpoint.send, deadline_s=60), endpoint.aclose


LOOPS: dict[str, Callable[..., Loop]] = {"openai": as_documented, "endpoint": our_endpoint}


def _dataset(folder: Path, items: int) -> Path:
    """Repeat the questions of logic-5k until there are enough, each with an id of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.ParquetFile(DATASET).read()
    table = pa.concat_tables([table] * -(-items // table.num_rows)).slice(0, items)
    table = table.set_column(0, "item_id", pa.array([f"item-{i}" for i in range(items)]))
    pq.write_table(table, folder / "items.parquet")
    return folder / "items.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[2000, 20000])
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--stream", default="none")
    parser.add_argument("--bare", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        run_bare(given.bare, items=given.items[0], limit=given.limit, stream=given.stream, client=given.client)
        return
    small, large = given.items
    print(f"{'case':40s} {'CPU ms/item':>11s} {'items/s':>8s}   CPU ratio  wall ratio   where (CPU ms/item)")
    cases = {name: partial(bare, client=name) for name in LOOPS} | {"pipeline": pipeline}
    for stream in ("none", "all"):
        costs = {}
        with SimServer("instant") as server:
            for name, case in cases.items():
                few, many = (case(server, items=n, limit=given.limit, stream=stream) for n in (small, large))
                costs[name] = _slope(few, many, large - small)
        _print_rows("streaming" if stream == "all" else "not streaming", costs)


def _slope(few: Cost, many: Cost, items: int) -> Cost:
    """Return the cost of one more item: milliseconds of CPU by kind, and seconds of wall time."""
    cpu = {kind: (many.cpu_s.get(kind, 0) - few.cpu_s.get(kind, 0)) / items * 1e3 for kind in many.cpu_s}
    return Cost(cpu, (many.wall_s - few.wall_s) / items)


def _print_rows(title: str, costs: dict[str, Cost]) -> None:
    whole = costs["pipeline"]
    for name, told in (("openai", "bare loop, openai client"), ("endpoint", "bare loop, our Endpoint")):
        plain = costs[name]
        ratios = f"{plain.total_s / whole.total_s:10.2f}  {plain.wall_s / whole.wall_s:10.2f}"
        print(f"{f'{title}, {told}':40s} {plain.total_s:11.3f} {1 / plain.wall_s:8.0f}  {ratios}")
    where = ", ".join(f"{kind} {ms:.2f}" for kind, ms in sorted(whole.cpu_s.items()))
    print(f"{f'{title}, evalpipe':40s} {whole.total_s:11.3f} {1 / whole.wall_s:8.0f}  {'':22s}   {where}")


if __name__ == "__main__":
    main()
