"""Race laws over real HTTP and real Ray against the simulated server, and say whether virtual time told the truth.

    python benchmarks/race_http.py [--items 2000] [--only vllm] [--laws progress gradient]

Each heat is one `evalpipe run` with two workers against a server process of its own. Beside it the same law on the same
server in virtual time. Ratios are over the best fixed limit, found in virtual time: that is what must agree, within
0.05, because makespans differ by the answers that were drawn. `cliff` runs at a fifth of its speed, so that both
servers deliver at most 8,000 tokens/s. A heat in which the workers or the server took more than 60 % of a core each is
void: it measured this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalpipe.control.build import build_law
from evalpipe.sim.course import Course
from evalpipe.sim.profiles import profile
from evalpipe.sim.server import SimServer
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualSetup

DATASET = Path(__file__).parents[1] / "datasets/logic-5k.parquet"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
VOID_SHARE = 0.6
WORKERS = 2
LAWS = ("fixed", "progress", "gradient", "aimd")
FIXED_GRID = (20, 30, 40, 45, 50, 55, 60, 64, 67, 70, 80)
#: What the profile is changed by, and the course that stands for its dataset in virtual time.
SLOW_CLIFF = {"base_s": 2.0, "collapsed_s": 17.5}
TRACKS: Mapping[str, Mapping[str, Any]] = {"vllm": {}, "cliff": SLOW_CLIFF}


@dataclass(frozen=True, slots=True)
class Heat:
    """client, server: shares of a core. ttft_s: median. in_flight: mean. retries: attempts beyond the first."""

    seconds: float
    ttft_s: float
    in_flight: float
    retries: int
    client: float = 0.0
    server: float = 0.0

    @property
    def is_void(self) -> bool:
        return max(self.client / WORKERS, self.server) > VOID_SHARE


def over_http(track: str, law: str, *, start: int, items: int) -> Heat:
    """Run the command line against a fresh server. start: of the law; `fixed` stays there."""
    with tempfile.TemporaryDirectory() as folder, SimServer(track, options=dict(TRACKS[track])) as server:
        command = [
            *(sys.executable, "-m", "evalpipe.cli.main", "run", "--base-url", server.base_url, "--model", "sim"),
            *("--dataset", str(DATASET), "--limit", str(items), "-o", folder, "--name", "run", "--json"),
            *("--workers", str(WORKERS), "--set", f"control.law={law}", "--set", f"control.start={start}"),
            *("--set", "control.max_limit=512"),
        ]
        cpu_s, began = _cpu_s(server.pid), time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the run of {law} on {track} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        share = (_cpu_s(server.pid) - cpu_s) / (time.monotonic() - began)
    told = json.loads(done.stdout)
    rate, limit = told["rate"], told["limit"]
    seconds = rate["elapsed_s"] - rate["first_request_s"]
    return Heat(
        seconds=seconds,
        ttft_s=told["latency"]["ttft_s"]["p50"],
        in_flight=limit["mean_in_flight"],
        retries=rate["retries"],
        client=rate["worker_cpu_s"] / rate["elapsed_s"],
        server=share,
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def in_virtual_time(track: str, law: str, *, start: int, items: int) -> Heat:
    """Run the same law on the same server model, with as many workers and a call of 4 ms to the controller."""
    course = Course(track, profile(track, **TRACKS[track]), items)
    setup = VirtualSetup(workers=WORKERS, lag_s=0.004)
    run = run_virtual(build_law(law, start=start, max_limit=512), course.server(0), course.draw(0), setup=setup)
    return Heat(run.makespan_s, float(np.median(run.ttft_s)), run.mean_in_flight, run.attempts - items)


def best_fixed(track: str, *, items: int) -> int:
    """Return the limit of FIXED_GRID that takes least in virtual time."""
    return min(FIXED_GRID, key=lambda limit: in_virtual_time(track, "fixed", start=limit, items=items).seconds)


def race(track: str, laws: Sequence[str], *, items: int) -> None:
    """Print one row a law; the fixed limit runs first and is what the others are compared with."""
    best = best_fixed(track, items=items)
    yardsticks: list[Heat] = []
    for law in laws:
        start = best if law == "fixed" else 16
        pair = [run(track, law, start=start, items=items) for run in (over_http, in_virtual_time)]
        yardsticks = yardsticks or pair
        _print_row(track, f"fixed {best}" if law == "fixed" else law, pair, yardsticks)


def _print_row(track: str, law: str, pair: Sequence[Heat], yardsticks: Sequence[Heat]) -> None:
    http, virtual = pair
    ratios = [heat.seconds / yardstick.seconds for heat, yardstick in zip(pair, yardsticks, strict=True)]
    void = "  void: CPU" if http.is_void else ""
    print(
        f"{track:6s} {law:10s} {http.seconds:7.1f} {ratios[0]:6.3f} {http.ttft_s:7.3f} {http.in_flight:6.1f}"
        f" {http.retries:8d} | {virtual.seconds:7.1f} {ratios[1]:6.3f} {virtual.ttft_s:7.3f} {virtual.in_flight:6.1f}"
        f" {virtual.retries:8d} | {http.client:6.2f} {http.server:6.2f} {ratios[0] - ratios[1]:+6.3f}{void}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--only", choices=sorted(TRACKS), help="one of the two servers")
    parser.add_argument("--laws", nargs="+", default=list(LAWS), help="the first is what the others are compared with")
    given = parser.parse_args()
    print(
        f"{given.items} items, {WORKERS} workers; over HTTP and Ray | in virtual time | CPU of workers, of the server"
    )
    heads = f"{'s':>7s} {'ratio':>6s} {'TTFT':>7s} {'flight':>6s} {'retries':>8s}"
    print(f"{'':6s} {'law':10s} {heads} | {heads} | {'client':>6s} {'server':>6s} {'differ':>6s}")
    for track in [given.only] if given.only else TRACKS:
        race(track, given.laws, items=given.items)


if __name__ == "__main__":
    main()
