"""The BBR-like law as published: what is delivered per second times how long one takes unloaded.

    formula = clamp(ceil(max_pass_qps * min_rtt * 1.5), 5, 200)    every 2 s

After the reading of BBR that service meshes use (go-kratos/aegis ratelimit/bbr). Kept as it is for comparison: its
fixed point does not depend on what the server can do, and with answers of 20 s its windows are almost empty.
Where the publication leaves a choice, it is made here and said at the place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError

PRIOR_MIN_RTT_S = 0.1
PRIOR_MAX_PASS_QPS = 50.0
DECISION_S = 2.0
BUCKET_COUNT = 10  # closed buckets of one second
SAMPLING_S = 5  # seconds of the sampling rtt, the current one included
PROBING_BELOW = 1.2  # times min_rtt
BACKOFF_ABOVE = 2.0  # times min_rtt


@dataclass(slots=True)
class Bucket:
    """The successes of one second of the law's own clock."""

    second: int
    count: int = 0
    rtt_sum_s: float = 0.0
    rtt_min_s: float = math.inf  # never stored empty: a bucket is made by its first success

    def add(self, rtt_s: float) -> None:
        self.count += 1
        self.rtt_sum_s += rtt_s
        self.rtt_min_s = min(self.rtt_min_s, rtt_s)


@dataclass(slots=True)
class BbrState:
    """Everything the law remembers. mode: probing, steady or backoff.

    min_rtt_s, max_pass_qps: the priors while `is_prior`. buckets: oldest first, seconds without success are absent.
    elapsed_s: time this law has been deciding, over all processes; decide_at_s is an instant of that clock.
    """

    limit: float
    epoch: int = 0
    mode: str = "steady"
    min_rtt_s: float = PRIOR_MIN_RTT_S
    max_pass_qps: float = PRIOR_MAX_PASS_QPS
    is_prior: bool = True
    buckets: list[Bucket] = field(default_factory=list)
    elapsed_s: float = 0.0
    decide_at_s: float = DECISION_S


class BbrPublishedLaw:
    """Set the limit to the formula every 2 s, one higher while probing, at once while backing off.

    Rejections are not counted, as published: they are no completions. In `backoff` new sends above the limit are to be
    shed, not queued: use `Limiter.try_acquire`. gain: the 1.5 of the formula. Raises ConfigError for gain <= 0.
    """

    def __init__(self, bounds: Bounds, *, state: BbrState | None = None, gain: float = 1.5) -> None:
        if not gain > 0:
            raise ConfigError(f"gain must be above 0, got {gain:g}")
        self.state = state or BbrState(limit=bounds.start)
        self._bounds = bounds
        self._gain = gain
        self._pending: list[Observation] = []
        self._last_now: float | None = None

    def observe(self, observation: Observation) -> None:
        """Remember; `decide` reads it."""
        self._pending.append(observation)

    def decide(self, *, now: float) -> LimitChange | None:
        """Book what was observed at `now`, check backoff after each observation, and decide when 2 s have passed."""
        self._advance(now)
        old = self.state.limit
        pending, self._pending = self._pending, []
        for observation in pending:
            for sample in observation.samples:
                self._book(sample)
            self._check_backoff()
        if self.state.elapsed_s >= self.state.decide_at_s:
            self._decide()
        new = self.state.limit
        if new == old:
            return None
        return LimitChange(old, new, self._reason(new - old), self._evidence())

    def _advance(self, now: float) -> None:
        """Move the law's own clock and learn from the buckets that closed."""
        state = self.state
        if self._last_now is not None:
            state.elapsed_s += max(0.0, now - self._last_now)
        self._last_now = now
        second = int(state.elapsed_s)
        closed = [bucket for bucket in state.buckets if bucket.second < second]
        state.buckets = [bucket for bucket in state.buckets if bucket.second >= second - BUCKET_COUNT]
        if closed:
            self._learn(closed, [bucket for bucket in state.buckets if bucket.second < second])

    def _learn(self, closed: Sequence[Bucket], window: Sequence[Bucket]) -> None:
        """Take the closed buckets in; without one in the window, what was delivered last is the best guess."""
        state = self.state
        # The smallest of all time, not of the window: under load the window holds loaded latencies only.
        closed_min_s = min(bucket.rtt_min_s for bucket in closed)
        state.min_rtt_s = closed_min_s if state.is_prior else min(state.min_rtt_s, closed_min_s)
        state.max_pass_qps = float(max(bucket.count for bucket in window or closed))
        state.is_prior = False

    def _book(self, sample: Sample) -> None:
        if sample.outcome is not Outcome.OK or not (math.isfinite(sample.rtt_s) and sample.rtt_s > 0):
            return
        second = int(self.state.elapsed_s)
        if not self.state.buckets or self.state.buckets[-1].second != second:
            self.state.buckets.append(Bucket(second))
        self.state.buckets[-1].add(sample.rtt_s)

    def _check_backoff(self) -> None:
        if self._mode() == "backoff":
            self.state.mode = "backoff"
            self._move(self._formula())

    def _decide(self) -> None:
        self.state.decide_at_s = self.state.elapsed_s + DECISION_S
        self.state.mode = self._mode()
        self._move(self._formula() + (1 if self.state.mode == "probing" else 0))

    def _formula(self) -> float:
        # clamped first: a product beyond the floats has no ceiling
        return math.ceil(self._bounds.clamp(self.state.max_pass_qps * self.state.min_rtt_s * self._gain))

    def _mode(self) -> str:
        """Return the state that the sampling rtt calls for; steady while there is nothing measured to compare with."""
        recent_s = self._recent()
        if recent_s is None or self.state.is_prior:
            return "steady"
        if recent_s <= PROBING_BELOW * self.state.min_rtt_s:
            return "probing"
        return "backoff" if recent_s > BACKOFF_ABOVE * self.state.min_rtt_s else "steady"

    def _recent(self) -> float | None:
        """Return the mean latency of the last 5 s, None without a success in them."""
        since = int(self.state.elapsed_s) - SAMPLING_S
        recent = [bucket for bucket in self.state.buckets if bucket.second > since]
        count = sum(bucket.count for bucket in recent)
        return sum(bucket.rtt_sum_s for bucket in recent) / count if count else None

    def _move(self, target: float) -> None:
        self.state.epoch += target < self.state.limit
        self.state.limit = float(self._bounds.clamp(target))

    def _reason(self, delta: float) -> str:
        if self.state.is_prior:
            return "startup"
        return "grow" if delta > 0 else "queue"

    def _evidence(self) -> Evidence:
        recent_s = self._recent()
        return Evidence(
            baseline_s=self.state.min_rtt_s,
            recent_s=recent_s,
            gradient=None if recent_s is None else self.state.min_rtt_s / recent_s,
            samples=sum(bucket.count for bucket in self.state.buckets),
            state=self.state.mode,
        )
