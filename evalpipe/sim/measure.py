"""A run in virtual time reduced to numbers: how long it took, what it cost others, how steady and how full it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from evalpipe.control.core import Tick
from evalpipe.sim.virtual_run import VirtualRun

SETTLED, SPARE, STAYS_S = 0.15, 4.0, 3.0  # within 15 % of what it should be, or a few requests, and for so long


@dataclass(frozen=True, slots=True)
class Heat:
    """One run, or the mean of several, in numbers. Latencies are of the attempts that succeeded, in seconds.

    p99_per_work_s: seconds per unit of work. variance: (requests/s)^2 of completions in 1 s bins, middle 80 % of the
    run; cv: its root over the mean. littles_in_flight: completions a second times mean latency; mean_in_flight: the
    average over time, which it must equal. ttft_p50_s: to the first token, of the attempts that succeeded.
    first_peak: most in flight before the first token of all. failures: attempts that failed without being refused.
    utilisation: busy slot time over slot time until the backlog was empty, NaN where slots are not what binds.
    """

    makespan_s: float
    rejections: float
    p50_s: float
    p99_s: float
    p99_per_work_s: float
    variance: float
    cv: float
    littles_in_flight: float
    mean_in_flight: float
    unfinished: float
    ttft_p50_s: float = 0.0
    preemptions: float = 0.0
    peak_in_flight: float = 0.0
    first_peak: float = 0.0
    attempts: float = 0.0
    failures: float = 0.0
    utilisation: float = math.nan


def measure(run: VirtualRun, *, slots: int | None = None) -> Heat:
    """Reduce a run to the numbers of the table; latencies are NaN when nothing finished.

    slots: of the server, where they are what binds.
    """
    variance, cv = run.throughput_variance()
    p50_s, p99_s = np.percentile(run.rtt_s, (50, 99)) if len(run.rtt_s) else (np.nan, np.nan)
    per_work_s = np.percentile(run.rtt_s / run.work, 99) if len(run.rtt_s) else np.nan
    slot_time_s = slots * run.dispatched_s if slots else 0.0
    return Heat(
        makespan_s=run.makespan_s,
        rejections=run.rejections,
        p50_s=float(p50_s),
        p99_s=float(p99_s),
        p99_per_work_s=float(per_work_s),
        variance=variance,
        cv=cv,
        littles_in_flight=run.littles_in_flight,
        mean_in_flight=run.mean_in_flight,
        unfinished=run.unfinished,
        ttft_p50_s=float(np.median(run.ttft_s)) if len(run.ttft_s) else np.nan,
        preemptions=run.preemptions,
        peak_in_flight=run.peak_in_flight,
        first_peak=run.first_peak,
        attempts=run.attempts,
        failures=run.failures,
        utilisation=run.running_s / slot_time_s if slot_time_s else math.nan,
    )


def average(heats: Sequence[Heat]) -> Heat:
    """Return the mean of each number."""
    return Heat(*(float(np.mean([getattr(heat, f.name) for heat in heats])) for f in fields(Heat)))


def settle_s(ticks: Sequence[Tick], *, at: float, until: float, least: float, most: float) -> float:
    """Return how long after `at` what is in flight came between least and most for 3 s; until - at if never.

    15 % of either, or four requests where that is more, are allowed on each side.
    """
    low, high = least - max(SETTLED * least, SPARE), most + max(SETTLED * most, SPARE)
    since: float | None = None
    for tick in ticks:
        if not at <= tick.at < until:
            continue
        if not low <= tick.in_flight <= high:
            since = None
        elif since is None:
            since = tick.at
        elif tick.at - since >= STAYS_S:
            return since - at
    return until - at


def failed_within(run: VirtualRun, start_s: float, end_s: float) -> int:
    """Count the attempts that failed, refused or not, in this stretch of time."""
    return int(((run.failed_at >= start_s) & (run.failed_at < end_s)).sum())


def rates_within(runs: Sequence[VirtualRun], start_s: float, end_s: float) -> NDArray[np.float64]:
    """Return the tokens a second, prompt and output, of the answers that each run got in this stretch of time."""
    tokens = [float(run.tokens[(run.done_at >= start_s) & (run.done_at < end_s)].sum()) for run in runs]
    return np.array(tokens) / (end_s - start_s)


def jain(shares: NDArray[np.float64]) -> float:
    """Return Jain's fairness index: 1 for equal shares, 1/n when one has all. NaN without any."""
    square_sum = float((shares**2).sum())
    return float(shares.sum()) ** 2 / (len(shares) * square_sum) if square_sum else math.nan
