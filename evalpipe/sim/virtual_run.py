"""What goes into a run in virtual time (VirtualSetup) and what comes out of it (VirtualRun). Values only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalpipe.control.core import Tick, TimedChange
from evalpipe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class VirtualSetup:
    """How the cluster around the server looks. Times in seconds.

    lag_s: a whole call to the controller, there and back. overhead_s: of a request before the model sees it (a
    profile's overhead_s). seed: of the retries' jitter. horizon_s: a law that never finishes is stopped here.
    Raises ConfigError for a setup that cannot be.
    """

    workers: int = 1
    exchange_s: float = 0.1
    lag_s: float = 0.0
    overhead_s: float = 0.0
    seed: int = 0
    horizon_s: float = 100_000.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {self.workers}")
        if min(self.exchange_s, self.horizon_s) <= 0:
            raise ConfigError(
                f"exchange_s and horizon_s must be above 0, got {self.exchange_s:g} and {self.horizon_s:g}"
            )
        if min(self.lag_s, self.overhead_s) < 0:
            raise ConfigError(f"lag_s and overhead_s must be at least 0, got {self.lag_s:g} and {self.overhead_s:g}")


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """What happened. Arrays have one entry a finished job, in order of completion.

    job_id: int64[n]; done_at, rtt_s, ttft_s: float64[n] seconds; work: float64[n]. rtt_s and ttft_s (to the first
    token) are of the attempt that succeeded.
    makespan_s: when the last job finished, or the horizon. unfinished: jobs left then. mean_in_flight: over time,
    unfinished requests included; peak_in_flight counts what the server had taken or was being sent.
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
