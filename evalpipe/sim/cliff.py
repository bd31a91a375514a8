"""A server of shared capacity that collapses past a cliff: processor sharing, event by event.

With n jobs inside (a neighbour's included) each job gets, in work per second:
    n <= safe            1 / base_s              the server is not full
    n <= flat_until      safe / (n * base_s)     full: the total stays, shared by more
    above                1 / collapsed_s         collapse, whatever n
A job that would be number reject_above + 1 is refused with a 429. All jobs run at one speed, so the work that a job
present all the time would have received ("virtual service time") orders all events in one heap.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, replace

from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Event, EventKind, Job, Rejection

TTFT_SHARE = 0.1  # of a job's work, before its first token


@dataclass(frozen=True, slots=True)
class CliffParams:
    """base_s, collapsed_s: seconds for a job of work 1 alone and in collapse. The others: jobs in flight.

    neighbour_mean 0 means no neighbour. Otherwise another tenant holds a number of jobs that is redrawn each
    neighbour_step_s: a normal process of that mean and deviation whose value keeps neighbour_memory of its distance
    to the mean from step to step (AR(1)), rounded, never below 0.
    """

    base_s: float = 0.4
    safe: int = 45
    flat_until: int = 55
    collapsed_s: float = 3.5
    reject_above: int = 70
    neighbour_mean: float = 0.0
    neighbour_deviation: float = 7.0
    neighbour_memory: float = 0.8
    neighbour_step_s: float = 1.0

    def __post_init__(self) -> None:
        if min(self.base_s, self.collapsed_s, self.neighbour_step_s) <= 0:
            raise ConfigError(f"base_s, collapsed_s and neighbour_step_s must be above 0, got {self}")
        if not 1 <= self.safe <= self.flat_until <= self.reject_above:
            raise ConfigError(
                "must hold 1 <= safe <= flat_until <= reject_above,"
                f" got safe={self.safe}, flat_until={self.flat_until}, reject_above={self.reject_above}"
            )
        if not 0 <= self.neighbour_memory < 1:
            raise ConfigError(f"neighbour_memory must lie in [0, 1), got {self.neighbour_memory:g}")

    def speed(self, jobs: int) -> float:
        """Return the work per second that each of so many jobs gets."""
        if jobs <= self.safe:
            return 1 / self.base_s
        if jobs <= self.flat_until:
            return self.safe / (jobs * self.base_s)
        return 1 / self.collapsed_s


class Neighbour:
    """Another tenant's jobs in flight; `at` is when the number changes next."""

    def __init__(self, params: CliffParams, seed: int) -> None:
        self._params = params
        self._rng = random.Random(f"neighbour/{seed}")
        self._offset = self._rng.gauss(0, params.neighbour_deviation)
        self.at = math.inf

    @property
    def jobs(self) -> int:
        mean = self._params.neighbour_mean
        return 0 if mean <= 0 else max(round(mean + self._offset), 0)

    def step(self) -> None:
        memory = self._params.neighbour_memory
        noise = self._rng.gauss(0, self._params.neighbour_deviation * math.sqrt(1 - memory * memory))
        self._offset = memory * self._offset + noise
        self.at += self._params.neighbour_step_s

    def start(self, now: float) -> None:
        if self._params.neighbour_mean > 0:
            self.at = now + self._params.neighbour_step_s


@dataclass(frozen=True, slots=True)
class _Entry:
    job: Job
    finish: float  # virtual service time at which it is done

    def tokens(self, served: float) -> int:
        share = 1 - (self.finish - served) / self.job.work
        if share < TTFT_SHARE:
            return 0
        more = int((share - TTFT_SHARE) / (1 - TTFT_SHARE) * (self.job.output_tokens - 1))
        return min(1 + more, self.job.output_tokens)


class Cliff:
    """See ServerModel. Every job in flight runs: nothing waits."""

    waiting = 0
    preemptions = 0
    kv_used = 0.0

    def __init__(self, params: CliffParams, *, seed: int = 0) -> None:
        self._params = self._whole = params
        self._neighbour = Neighbour(params, seed)
        self._entries: dict[int, _Entry] = {}
        self._due: list[tuple[float, int, EventKind]] = []  # virtual service time; entries of cancelled jobs stay
        self._served = 0.0  # virtual service time at _at
        self._at: float | None = None  # None: before the first call
        self._emitted = 0  # of jobs that left
        self.prefill_done = 0

    @property
    def in_flight(self) -> int:
        return len(self._entries)

    @property
    def running(self) -> int:
        return len(self._entries)

    @property
    def tokens_emitted(self) -> int:
        return self._emitted + sum(entry.tokens(self._served) for entry in self._entries.values())

    def tokens_of(self, job_id: int) -> int:
        entry = self._entries.get(job_id)
        return 0 if entry is None else entry.tokens(self._served)

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        self._begin(now)
        if self._load() + 1 > self._params.reject_above:
            return Rejection(429, None, "rate_limit_exceeded")
        job = replace(job, work=max(job.work, 1e-9))  # progress is a share of the work
        self._entries[job.job_id] = _Entry(job, self._served + job.work)
        heapq.heappush(self._due, (self._served + TTFT_SHARE * job.work, job.job_id, "first_token"))
        heapq.heappush(self._due, (self._served + job.work, job.job_id, "done"))
        return None

    def resize(self, share: float) -> None:
        """Go on with so large a share of the capacity it was built with."""
        whole = self._whole
        safe, flat_until, most = (
            max(round(share * jobs), 1) for jobs in (whole.safe, whole.flat_until, whole.reject_above)
        )
        self._params = replace(whole, safe=safe, flat_until=flat_until, reject_above=most)

    def cancel(self, job_id: int, *, now: float) -> None:
        entry = self._entries.pop(job_id, None)
        if entry is not None:
            self._emitted += entry.tokens(self._served)

    def next_event_at(self) -> float:
        due_at = self._due_at()
        return due_at if due_at == math.inf else min(due_at, self._neighbour.at)

    def advance(self, now: float) -> list[Event]:
        self._begin(now)
        events: list[Event] = []
        while (at := min(self._due_at(), self._neighbour.at)) <= now:
            if at == self._neighbour.at:
                self._move(at)
                self._neighbour.step()
            else:
                events.append(self._pop(at))
        self._move(now)
        return events

    def _begin(self, now: float) -> None:
        if self._at is None:
            self._at = now
            self._neighbour.start(now)

    def _load(self) -> int:
        return len(self._entries) + self._neighbour.jobs

    def _due_at(self) -> float:
        while self._due and self._due[0][1] not in self._entries:
            heapq.heappop(self._due)
        if not self._due or self._at is None:
            return math.inf
        return self._at + max(self._due[0][0] - self._served, 0.0) / self._params.speed(self._load())

    def _move(self, now: float) -> None:
        assert self._at is not None
        if self._entries:
            self._served += max(now - self._at, 0.0) * self._params.speed(self._load())
        self._at = now

    def _pop(self, at: float) -> Event:
        # Taken from the heap, not from speed * time: rounding must not leave an event a hair in the future for ever.
        self._served, job_id, kind = heapq.heappop(self._due)
        self._at = at
        if kind == "first_token":
            self.prefill_done += self._entries[job_id].job.prompt_tokens
        else:
            self._emitted += self._entries.pop(job_id).job.output_tokens
        return Event(kind, job_id, at)
