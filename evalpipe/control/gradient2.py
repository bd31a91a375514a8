"""`gradient2`: the second gradient limit of Netflix's concurrency-limits, to the letter, for comparison.

    gradient = clamp(tolerance * long / short, 0.5, 1.0)               at the end of each window of a second
    limit    = clamp(0.8 * limit + 0.2 * (limit * gradient + 4))

short is the mean latency of the window, long its average over some 600 windows. After Gradient2Limit, WindowedLimit and
ExpAvgMeasurement of Netflix/concurrency-limits@78a74b9 with the defaults of their builders, bounds included.

What does not work in it is kept: the long average follows the load it should judge, so the limit drifts upwards while
latency rises slowly; raw latency takes long answers for congestion; rejections only count as (short) latencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError

WINDOW_S = 1.0  # both the shortest and the longest window of the original
WINDOW_LEAST = 10  # samples; a window with fewer is thrown away
RTT_LEAST_S = 1e-4  # what is shorter is no sample
WARM_UP = 10  # windows of which the long average is the plain mean
MIN_GRADIENT, MAX_GRADIENT = 0.5, 1.0
DRIFTED, DRIFT_DECAY = 2.0, 0.95  # the long average falls by 5 % a window while it is more than twice the short one


@dataclass(slots=True)
class LongAverage:
    """A plain mean over the first windows, then exponential. JSON-able. Seconds; count: windows of the mean so far."""

    value_s: float = 0.0
    sum_s: float = 0.0
    count: int = 0

    def add(self, value_s: float, *, window: int) -> float:
        if self.count < WARM_UP:
            self.count += 1
            self.sum_s += value_s
            self.value_s = self.sum_s / self.count
        else:
            factor = 2.0 / (window + 1)
            self.value_s = self.value_s * (1.0 - factor) + value_s * factor
        return self.value_s


@dataclass(slots=True)
class SampleWindow:
    """What a window has seen so far, JSON-able. most_in_flight: when a sample of it was sent."""

    count: int = 0
    sum_s: float = 0.0
    most_in_flight: int = 0

    def add(self, sample: Sample) -> None:
        self.count += 1
        self.sum_s += sample.rtt_s
        self.most_in_flight = max(self.most_in_flight, sample.in_flight_at_send)


@dataclass(slots=True)
class Gradient2State:
    """Everything the law remembers, JSON-able. elapsed_s: the law's own clock; ends_at_s is an instant of it."""

    limit: float
    epoch: int = 0
    long: LongAverage = field(default_factory=LongAverage)
    window: SampleWindow = field(default_factory=SampleWindow)
    elapsed_s: float = 0.0
    ends_at_s: float = -1.0  # over before it began: the very first sample is a window of its own, too thin to count


class Gradient2Law:
    """Compare the mean latency of a second with its long average.

    tolerance: how much slower than the long average is no queue. queue_size: permits added each window. smoothing:
    share of the new limit. long_window: windows. Raises ConfigError for options out of range.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        state: Gradient2State | None = None,
        tolerance: float = 1.5,
        queue_size: float = 4.0,
        smoothing: float = 0.2,
        long_window: int = 600,
    ) -> None:
        if tolerance < 1.0 or queue_size < 0.0:
            raise ConfigError(
                "gradient2: tolerance must be >= 1 and queue_size >= 0,"
                f" got tolerance={tolerance:g}, queue_size={queue_size:g}"
            )
        if not 0.0 < smoothing <= 1.0 or long_window < 1:
            raise ConfigError(
                "gradient2: smoothing must lie in (0, 1] and long_window be at least 1,"
                f" got smoothing={smoothing:g}, long_window={long_window}"
            )
        self.state = state or Gradient2State(limit=bounds.start)
        self._bounds = bounds
        self._tolerance = tolerance
        self._queue_size = queue_size
        self._smoothing = smoothing
        self._long_window = long_window
        self._arrived: list[Sample] = []
        self._last_now: float | None = None

    def observe(self, observation: Observation) -> None:
        """Remember what is a sample there: successes and rejections; an ignored failure is none."""
        self._arrived.extend(sample for sample in observation.samples if _is_sample(sample))

    def decide(self, *, now: float) -> LimitChange | None:
        """Add what arrived to the window; the first sample after its end closes it and may move the limit."""
        state = self.state
        state.elapsed_s += max(0.0, now - self._last_now) if self._last_now is not None else 0.0
        self._last_now = now
        arrived, self._arrived = self._arrived, []
        change = None
        for sample in arrived:
            state.window.add(sample)
            if state.elapsed_s > state.ends_at_s:
                change = self._close()
        return change

    def _close(self) -> LimitChange | None:
        state = self.state
        window, state.window = state.window, SampleWindow()
        state.ends_at_s = state.elapsed_s + WINDOW_S
        return self._update(window) if window.count >= WINDOW_LEAST else None

    def _update(self, window: SampleWindow) -> LimitChange | None:
        old, short_s = self.state.limit, window.sum_s / window.count
        long_s = self.state.long.add(short_s, window=self._long_window)
        if long_s / short_s > DRIFTED:
            self.state.long.value_s *= DRIFT_DECAY
        if window.most_in_flight < old / 2:
            return None  # the limit is not in use
        gradient = min(max(self._tolerance * long_s / short_s, MIN_GRADIENT), MAX_GRADIENT)
        target = old * gradient + self._queue_size
        new = self.state.limit = self._bounds.clamp((1.0 - self._smoothing) * old + self._smoothing * target)
        self.state.epoch += new < old
        if new == old:
            return None
        evidence = Evidence(baseline_s=long_s, recent_s=short_s, gradient=long_s / short_s, samples=window.count)
        return LimitChange(old, new, "grow" if new > old else "queue", evidence)


def _is_sample(sample: Sample) -> bool:
    return sample.outcome is not Outcome.IGNORED and math.isfinite(sample.rtt_s) and sample.rtt_s >= RTT_LEAST_S
