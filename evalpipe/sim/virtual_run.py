"""What goes into a run in virtual time (VirtualSetup) and what comes out of it (VirtualRun). Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evalpipe.control.core import Tick, TimedChange
from evalpipe.control.quota import UNDECLARED, Quota
from evalpipe.errors import ConfigError
from evalpipe.sim.gateway import Gateway


@dataclass(frozen=True, slots=True)
class VirtualSetup:
    """How the cluster around the server looks. Times in seconds.

    lag_s: a whole call to the controller, there and back. overhead_s: of a request before the model sees it (a
    profile's overhead_s). gateway: what else lies between. quota: as the user declared it, None for no pacing at all.
    is_sampling: a tenth of the requests is streamed, and all while at most 16 are in flight; else all are. deadline_s:
    an attempt that takes longer is broken off and sent again, None: none is. starts_at_s: when the run begins, on a
    server that others may use already. seed: of the retries' jitter and the gateway. horizon_s: a law that never
    finishes is stopped here.
    Raises ConfigError for a setup that cannot be.
    """

    workers: int = 1
    exchange_s: float = 0.1
    lag_s: float = 0.0
    overhead_s: float = 0.0
    gateway: Gateway = field(default_factory=Gateway)
    quota: Quota | None = UNDECLARED
    is_sampling: bool = False
    deadline_s: float | None = None
    starts_at_s: float = 0.0
    seed: int = 0
    horizon_s: float = 100_000.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {self.workers}")
        if min(self.exchange_s, self.horizon_s) <= 0 or (self.deadline_s is not None and self.deadline_s <= 0):
            raise ConfigError(
                "exchange_s, horizon_s and deadline_s must be above 0,"
                f" got {self.exchange_s:g}, {self.horizon_s:g} and {self.deadline_s}"
            )
        if min(self.lag_s, self.overhead_s, self.starts_at_s) < 0:
            raise ConfigError(
                "lag_s, overhead_s and starts_at_s must be at least 0,"
                f" got {self.lag_s:g}, {self.overhead_s:g} and {self.starts_at_s:g}"
            )


def _none() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """What happened. Arrays have one entry a finished job, in order of completion; all instants are the server's.

    job_id: int64[n]; done_at, rtt_s, ttft_s: float64[n] seconds; work: float64[n]. rtt_s and ttft_s (to the first
    token that was seen) are of the attempt that succeeded. tokens: int64[n], prompt and output.
    makespan_s: from the run's start to its last answer, or to the horizon. unfinished: jobs left then. mean_in_flight:
    over time, unfinished requests included; peak_in_flight counts what the server had taken or was being sent,
    first_peak the same before the first token of all came.
    rejections: attempts that were refused; failures: that failed otherwise. failed_at: float64[m], when either ended.
    running_s: request-seconds that the server ran, others' too, until dispatched_s, when the backlog was empty; seconds
    since the run's start. queue: float64[k, 2], seconds and jobs that waited in the server, every half second.
    """

    makespan_s: float
    job_id: NDArray[np.int64]
    done_at: NDArray[np.float64]
    rtt_s: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    work: NDArray[np.float64]
    rejections: int
    attempts: int
    unfinished: int
    peak_in_flight: int
    mean_in_flight: float
    preemptions: int
    ticks: list[Tick]
    changes: list[TimedChange]
    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first_peak: int = 0
    failures: int = 0
    failed_at: NDArray[np.float64] = field(default_factory=_none)
    running_s: float = 0.0
    dispatched_s: float = 0.0
    queue: NDArray[np.float64] = field(default_factory=_none)

    @property
    def littles_in_flight(self) -> float:
        """Mean requests in flight as Little's law has it: completions a second times mean latency."""
        return float(len(self.rtt_s) / self.makespan_s * self.rtt_s.mean()) if len(self.rtt_s) else 0.0

    def throughput_variance(self) -> tuple[float, float]:
        """Return variance (requests/s squared) and coefficient of variation of completions in 1 s bins, middle 80 %."""
        bins = np.bincount(self.done_at.astype(np.int64), minlength=max(int(self.makespan_s), 1))
        cut = len(bins) // 10
        middle = bins[cut : len(bins) - cut]
        mean = float(middle.mean())
        return float(middle.var()), float(middle.std()) / mean if mean else 0.0
