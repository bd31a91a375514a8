"""The published load test beside ours: in virtual time, or over HTTP against the simulated server.

python benchmarks/load_table.py [--seeds 8]
python benchmarks/load_table.py --http        eight minutes, one seed; wants two idle cores
"""

from __future__ import annotations

import argparse

from evalpipe.config import load_config
from evalpipe.loadtest.probe import Point
from evalpipe.loadtest.slo import Slo
from evalpipe.report.loadtest import header, row
from evalpipe.report.loadtest_published import format_load_table
from evalpipe.runtime.load_bench import BenchSettings, LoadBench
from evalpipe.runtime.load_prompts import MadeUp
from evalpipe.runtime.session import look
from evalpipe.sim.load_table import LoadRow, load_table, probes, row_of
from evalpipe.sim.process import SimServer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--http", action="store_true")
    given = parser.parse_args()
    print(format_load_table(over_http() if given.http else load_table(tuple(range(given.seeds)))))


def over_http() -> list[LoadRow]:
    """Run each row once, printing it as it comes; rows of a late client are printed, and told to be so."""
    print(header(), flush=True)
    with SimServer("table") as server:
        config = load_config(flags={"endpoint.base_url": server.base_url}, environ={})
        looked = look(config.endpoint, config.sampling)
        with LoadBench(looked, MadeUp(512), BenchSettings(Slo(), config.sampling)) as bench:
            return [row_of([shown(bench.run(probe))]) for probe in probes(seed=0)]


def shown(point: Point) -> Point:
    print(row(point), flush=True)
    return point


if __name__ == "__main__":
    main()
