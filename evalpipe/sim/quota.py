"""Quotas in requests and tokens per minute, put before another server model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Job, Rejection, ServerModel
from evalpipe.sim.wrapped import Wrapped


@dataclass(frozen=True, slots=True)
class QuotaParams:
    """rpm, tpm: requests and tokens (prompt + output) a minute, None for no such quota.

    window: "bucket" refills all the time and holds burst_s seconds' worth; "fixed" starts anew each window_s seconds.
    """

    rpm: int | None = None
    tpm: int | None = None
    window: str = "bucket"
    burst_s: float = 12.0
    window_s: float = 60.0

    def __post_init__(self) -> None:
        if self.window not in ("bucket", "fixed"):
            raise ConfigError(f"window must be 'bucket' or 'fixed', got {self.window!r}")
        if min(self.burst_s, self.window_s) <= 0:
            raise ConfigError(f"burst_s and window_s must be above 0, got {self.burst_s:g} and {self.window_s:g}")
        for name, value in (("rpm", self.rpm), ("tpm", self.tpm)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, or null for no quota, got {value}")


class Allowance:
    """What is left of one quota."""

    def __init__(self, per_minute: int, params: QuotaParams) -> None:
        self._rate = per_minute / 60
        self._is_bucket = params.window == "bucket"
        self._window_s = params.window_s
        self._capacity = self._rate * (params.burst_s if self._is_bucket else params.window_s)
        self._left = self._capacity
        self._at: float | None = None  # last refill, or start of the window

    def wait_s(self, cost: float, *, now: float) -> float:
        """Return seconds until `cost` can be taken, 0 when it can be now. What exceeds the whole needs it full."""
        self._refill(now)
        lacking = min(cost, self._capacity) - self._left
        if lacking <= 1e-9:  # refills are sums of rounded products
            return 0.0
        assert self._at is not None
        return lacking / self._rate if self._is_bucket else self._at + self._window_s - now

    def take(self, cost: float) -> None:
        self._left -= cost

    def _refill(self, now: float) -> None:
        if self._at is None:
            self._at = now
        if self._is_bucket:
            self._left = min(self._left + (now - self._at) * self._rate, self._capacity)
            self._at = now
            return
        windows = math.floor((now - self._at) / self._window_s)
        if windows > 0:
            self._at += windows * self._window_s
            self._left = self._capacity


class Quota(Wrapped):
    """See ServerModel. Refuses with 429 and a Retry-After what exceeds a quota; a refused job costs nothing."""

    def __init__(self, model: ServerModel, params: QuotaParams) -> None:
        super().__init__(model)
        self._requests = None if params.rpm is None else Allowance(params.rpm, params)
        self._tokens = None if params.tpm is None else Allowance(params.tpm, params)

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        costs = [(self._requests, 1), (self._tokens, job.prompt_tokens + job.output_tokens)]
        wait_s = max((a.wait_s(cost, now=now) for a, cost in costs if a is not None), default=0.0)
        if wait_s > 0:
            return Rejection(429, wait_s, "rate_limit_exceeded")
        rejection = self._model.submit(job, now=now)
        if rejection is None:
            for allowance, cost in costs:
                if allowance is not None:
                    allowance.take(cost)
        return rejection
