"""The published load test in virtual time: its rows on profile `table`, the open ones at rates that can be true.

The publication labels its open rows 20, 30 and 35 requests/s. The first two contradict its own tokens (report/
loadtest_published.py says how); the rates that its tokens imply are 22 and 26.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from evalpipe.loadtest.probe import Point, Probe
from evalpipe.sim.bench import VirtualBench
from evalpipe.sim.profiles import profile

CLOSED = (32, 64, 128)
OPEN = (22.0, 26.7, 35.0)
WINDOW_S = 60.0
#: Closed rows are measured in steady state. The open ones begin at once, behind the ramp: at 35/s the minute then holds
#: the build-up and the collapse, as the published latencies say that theirs did.
CLOSED_WARMUP_S, OPEN_WARMUP_S = 15.0, 3.0


@dataclass(frozen=True, slots=True)
class LoadRow:
    """Medians over the seeds. Seconds, tokens/s. preemption_rate: preemptions per request taken in."""

    loop: str
    level: float
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    preemption_rate: float
    refused_share: float
    verdicts: tuple[str, ...]


def load_table(seeds: Sequence[int] = (0, 1, 2)) -> list[LoadRow]:
    """Run every row with every seed; a second of CPU a seed."""
    return [row_of(points) for points in zip(*map(_run, seeds), strict=True)]


def probes(*, seed: int) -> list[Probe]:
    """Return the rows as probes, in the order of the publication."""
    closed = [Probe("closed", users, CLOSED_WARMUP_S, WINDOW_S, seed=seed) for users in CLOSED]
    return closed + [Probe("open", rate, OPEN_WARMUP_S, WINDOW_S, seed=seed) for rate in OPEN]


def _run(seed: int) -> list[Point]:
    bench = VirtualBench(profile("table"))
    return [bench.run(probe) for probe in probes(seed=seed)]


def row_of(points: Sequence[Point]) -> LoadRow:
    """Return one row of the table from what it measured with each seed."""
    rows = [point.measures for point in points]
    return LoadRow(
        loop=points[0].probe.loop,
        level=points[0].probe.level,
        tokens_per_s=median(row.output_tokens_per_s for row in rows),
        ttft_p50_s=median(row.ttft.seconds(50.0) for row in rows),
        ttft_p99_s=median(row.ttft.seconds(99.0) for row in rows),
        tpot_p99_s=median(row.tpot.seconds(99.0) for row in rows),
        preemption_rate=median(row.preemption_rate or 0.0 for row in rows),
        refused_share=median(row.error_share for row in rows),
        verdicts=tuple(point.verdict.value for point in points),
    )
