"""How the run stands: one value for panel, plain lines and JSON, and the judgement of what bounds its speed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evalpipe.control.core import Tick, TimedChange
from evalpipe.runtime.messages import Counters, PollReply

# A process that uses this share of a core, or whose loop wakes this late, distorts what it measures
CPU_BOUND_SHARE, LAG_BOUND_S = 0.85, 0.1
BINDS = 0.9  # in flight at this share of the limit: the limit is in use
UNCONGESTED = 0.8  # gradient above this at the largest limit allowed: the server would take more
RECENT_RTTS = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot. Times in seconds, rates a second. expected = ok + failed + what is still owed.

    ok, failed: in the log, earlier drivers' work included. finished, correct, scored: by this driver's workers.
    mean_limit, mean_in_flight: over the time that was recorded. changes: moves of the limit since the last snapshot.
    p50_s, p99_s: of recent answers, None before any. shadows: limits that other laws would have set, by name.
    """

    elapsed_s: float
    expected: int
    ok: int
    failed: int
    finished: int
    answered: int
    correct: int
    scored: int
    retries: int
    output_tokens: int
    failures: Mapping[str, int]
    requests_per_s: float
    tokens_per_s: float
    limit: float
    mean_limit: float
    mean_in_flight: float
    in_flight: int
    waiting: int
    gradient: float | None
    p50_s: float | None
    p99_s: float | None
    workers: int
    bound_by: str
    changes: Sequence[TimedChange] = ()
    shadows: Mapping[str, float] = field(default_factory=dict)

    @property
    def owed(self) -> int:
        return self.expected - self.ok - self.failed

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the present rate; None while there is none."""
        return self.owed / self.requests_per_s if self.requests_per_s > 0 else None


@dataclass(slots=True)
class _WorkerView:
    counters: Counters = field(default_factory=Counters)
    in_flight: int = 0
    queued: int = 0
    cpu_share: float = 0.0
    lag_s: float = 0.0


class Board:
    """Adds up what workers and controller say. Totals of dead worker processes are kept."""

    def __init__(self, *, max_limit: float) -> None:
        self._max_limit = max_limit
        self._workers: dict[str, _WorkerView] = {}
        self._gone: list[Counters] = []
        self._rtts: deque[float] = deque(maxlen=RECENT_RTTS)
        self._ticks: deque[Tick] = deque(maxlen=10)
        self._changes: list[TimedChange] = []
        self._bound = Counter[str]()
        self._ticked = 0
        self._limit_sum = self._in_flight_sum = 0.0
        self.limit = 0.0

    def on_reply(self, worker: str, reply: PollReply) -> None:
        self._workers[worker] = _WorkerView(reply.counters, reply.in_flight, reply.queued, reply.cpu_share, reply.lag_s)
        self._rtts.extend(reply.rtt_s)

    def on_death(self, worker: str) -> None:
        view = self._workers.pop(worker, None)
        if view is not None:
            self._gone.append(view.counters)

    def on_records(self, limit: float, ticks: Sequence[Tick], changes: Sequence[TimedChange]) -> None:
        self.limit = limit
        self._ticks.extend(ticks)
        self._ticked += len(ticks)
        self._limit_sum += sum(tick.limit for tick in ticks)
        self._in_flight_sum += sum(tick.in_flight for tick in ticks)
        self._changes.extend(changes)

    @property
    def queued(self) -> int:
        return sum(view.queued for view in self._workers.values())

    @property
    def in_flight(self) -> int:
        return sum(view.in_flight for view in self._workers.values())

    @property
    def failures(self) -> dict[str, int]:
        totals = Counter[str]()
        for counters in self._counters():
            totals.update(counters.failures)
        return dict(totals)

    def total(self, name: str) -> int:
        return sum(getattr(counters, name) for counters in self._counters())

    def judge(self, *, left: int, dt_s: float) -> str:
        """Say what bounds the speed now, and remember it for `bound_by`. left: items no worker has."""
        cause = self._cause(left)
        if self._ticks:
            self._bound[cause] += int(dt_s * 1000)
        return cause

    @property
    def bound_by(self) -> str:
        """What bounded the run for most of its time; "data" when it was over before it was measured."""
        return max(self._bound, key=lambda cause: self._bound[cause], default="data")

    def _cause(self, left: int) -> str:
        views = self._workers.values()
        if left + self.queued == 0:
            return "data"
        if any(view.cpu_share > CPU_BOUND_SHARE or view.lag_s > LAG_BOUND_S for view in views):
            return "client CPU"
        if self._ticks and self._ticks[-1].is_paced:
            return "quota"
        gradient = self._ticks[-1].gradient if self._ticks else None
        at_the_top = self.limit >= self._max_limit and self.in_flight >= BINDS * self.limit
        if at_the_top and gradient is not None and gradient > UNCONGESTED:
            return "limit"
        return "server"

    def snapshot(self, *, elapsed_s: float, expected: int, ok: int, failed: int, bound_by: str) -> Progress:
        changes, self._changes = tuple(self._changes), []
        last = self._ticks[-1] if self._ticks else None
        quantiles = np.quantile(list(self._rtts), [0.5, 0.99]).tolist() if self._rtts else [None, None]
        return Progress(
            elapsed_s=elapsed_s,
            expected=expected,
            ok=ok,
            failed=failed,
            finished=self.total("finished"),
            answered=self.total("answered"),
            correct=self.total("correct"),
            scored=self.total("scored"),
            retries=self.total("retries"),
            output_tokens=self.total("output_tokens"),
            failures=self.failures,
            requests_per_s=_mean([tick.requests_per_s for tick in self._ticks]),
            tokens_per_s=_mean([tick.tokens_per_s for tick in self._ticks]),
            limit=self.limit,
            mean_limit=self._limit_sum / max(self._ticked, 1),
            mean_in_flight=self._in_flight_sum / max(self._ticked, 1),
            in_flight=self.in_flight,
            waiting=last.waiting if last else 0,
            gradient=last.gradient if last else None,
            p50_s=quantiles[0],
            p99_s=quantiles[1],
            workers=len(self._workers),
            bound_by=bound_by,
            changes=changes,
            shadows=last.shadows if last else {},
        )

    def _counters(self) -> list[Counters]:
        return [*self._gone, *(view.counters for view in self._workers.values())]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
