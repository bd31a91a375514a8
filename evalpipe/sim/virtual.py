"""Virtual time: the real control code (law, LeaseBook, WorkerLease, RetryPolicy) against the server models, no clock.

Thousands of requests cost about a second. Workers, their exchange interval and the delay of a call to the controller
are parameters, so what is tuned here meets the same feedback it meets on a cluster.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from evalpipe.control.core import ControlCore, Tick, TimedChange
from evalpipe.control.law import Law
from evalpipe.control.lease import Permit, Report, WorkerLease
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.retry import RetryPolicy
from evalpipe.errors import StateError
from evalpipe.sim.engine import Job, Rejection, ServerModel


@dataclass(frozen=True, slots=True)
class VirtualSetup:
    """How the cluster around the server looks. Times in seconds; lag_s is a whole call there and back."""

    workers: int = 1
    exchange_s: float = 0.1
    lag_s: float = 0.0
    seed: int = 0
    horizon_s: float = 100_000.0  # a law that never finishes is stopped here


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """What happened. Arrays have one entry a finished job, in order of completion.

    done_at, rtt_s: float64[n] seconds; work: float64[n]. unfinished: jobs left at the horizon.
    """

    makespan_s: float
    done_at: np.ndarray
    rtt_s: np.ndarray
    work: np.ndarray
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
        """Variance (requests/s squared) and coefficient of variation of completions in 1 s bins, middle 80 %."""
        bins = np.bincount(self.done_at.astype(np.int64), minlength=max(int(self.makespan_s), 1))
        cut = len(bins) // 10
        middle = bins[cut : len(bins) - cut] if len(bins) > 2 * cut + 1 else bins
        return float(middle.var()), float(middle.std() / middle.mean()) if middle.mean() else 0.0


@dataclass(slots=True)
class _Sent:
    job: Job
    worker: _Worker
    permit: Permit
    sent_at: float
    first_at: float | None = None


@dataclass(slots=True)
class _Worker:
    name: str
    lease: WorkerLease = field(default_factory=WorkerLease)
    samples: list[Sample] = field(default_factory=list)
    retries: deque[Job] = field(default_factory=deque)
    tokens: int = 0
    waiting: int = 0


class _Cluster:
    """One virtual run in progress: events in time order, oldest first."""

    def __init__(self, law: Law, model: ServerModel, jobs: Sequence[Job], setup: VirtualSetup) -> None:
        self.core = ControlCore(law, exchange_s=setup.exchange_s)
        self.model, self.setup = model, setup
        self.backlog = deque(jobs)
        self.left = len(self.backlog)
        self.workers = [_Worker(f"w{i}") for i in range(setup.workers)]
        self.retry, self.rng = RetryPolicy(), random.Random(setup.seed)
        self.now = 0.0
        self.sent: dict[int, _Sent] = {}
        self.failures: dict[int, int] = {}
        self.finished: list[tuple[float, float, float]] = []
        self.rejections = self.attempts = self.peak = 0
        self.area = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self) -> VirtualRun:
        for index, worker in enumerate(self.workers):
            offset = index * self.setup.exchange_s / len(self.workers)
            self._at(offset, lambda worker=worker: self._ask(worker))  # type: ignore[misc]
        while self.left and self.now < self.setup.horizon_s:
            self._step()
        return self._outcome()

    def _step(self) -> None:
        """Move to the next instant; the server's own events come before ours at the same instant."""
        at = min(self._heap[0][0], self.model.next_event_at())
        if at == math.inf:
            raise StateError("virtual time: nothing left to happen, but jobs are unfinished")
        self.area += len(self.sent) * (at - self.now)
        self.now = at
        for event in self.model.advance(at):
            self._on_event(event.kind, event.job_id, event.at)
        while self._heap and self._heap[0][0] <= at:
            heapq.heappop(self._heap)[2]()

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def _on_event(self, kind: str, job_id: int, at: float) -> None:
        sent = self.sent.get(job_id)
        if sent is None:
            return
        if kind == "first_token":
            sent.first_at = at
            sent.worker.waiting -= 1
        elif kind == "done":
            self._finish(sent, at)

    def _finish(self, sent: _Sent, at: float) -> None:
        del self.sent[sent.job.job_id]
        worker, job = sent.worker, sent.job
        worker.lease.give_back()
        worker.tokens += job.output_tokens
        if sent.first_at is None:
            worker.waiting -= 1
        self.left -= 1
        self.finished.append((at, at - sent.sent_at, job.work))
        worker.samples.append(self._sample(sent, Outcome.OK, at))
        self._dispatch(worker)

    def _sample(self, sent: _Sent, outcome: Outcome, at: float) -> Sample:
        ok = outcome is Outcome.OK
        return Sample(
            outcome,
            rtt_s=at - sent.sent_at,
            kind="ok" if ok else "rate_limited",
            ttft_s=sent.first_at - sent.sent_at if sent.first_at is not None else None,
            prompt_tokens=sent.job.prompt_tokens,
            output_tokens=sent.job.output_tokens if ok else 0,
            epoch=sent.permit.epoch,
            limit=sent.permit.limit,
            in_flight_at_send=sent.permit.in_flight_at_send,
        )

    def _dispatch(self, worker: _Worker) -> None:
        while worker.retries or self.backlog:
            permit = worker.lease.take(now=self.now)
            if permit is None:
                return
            job = worker.retries.popleft() if worker.retries else self.backlog.popleft()
            self._send(worker, job, permit)

    def _send(self, worker: _Worker, job: Job, permit: Permit) -> None:
        self.attempts += 1
        sent = _Sent(job, worker, permit, self.now)
        rejection = self.model.submit(job, now=self.now)
        if rejection is not None:
            self._on_rejection(sent, rejection)
            return
        self.sent[job.job_id] = sent
        worker.waiting += 1
        self.peak = max(self.peak, len(self.sent))

    def _on_rejection(self, sent: _Sent, rejection: Rejection) -> None:
        worker, job = sent.worker, sent.job
        self.rejections += 1
        worker.lease.give_back()
        worker.lease.brake()
        worker.samples.append(self._sample(sent, Outcome.DROPPED, self.now))
        failures = self.failures[job.job_id] = self.failures.get(job.job_id, 0) + 1
        delay = self.retry.delay(failures, rejection.retry_after_s, self.rng)
        self._at(self.now + delay, lambda: self._retry(worker, job))

    def _retry(self, worker: _Worker, job: Job) -> None:
        worker.retries.append(job)
        self._dispatch(worker)

    def _ask(self, worker: _Worker) -> None:
        want = len(worker.retries) + len(self.backlog)
        sequence, in_flight, peak, held = worker.lease.ask(want=want, now=self.now)
        samples, worker.samples = tuple(worker.samples), []
        tokens, worker.tokens = worker.tokens, 0
        observation = Observation(in_flight, peak, waiting=worker.waiting, output_tokens=tokens, samples=samples)
        report = Report(worker.name, 1, sequence, held, want, observation)
        self._at(self.now + self.setup.lag_s / 2, lambda: self._answer(worker, report))

    def _answer(self, worker: _Worker, report: Report) -> None:
        lease = self.core.exchange(report, now=self.now)

        def renew() -> None:
            worker.lease.renew(lease)
            self._dispatch(worker)
            self._at(self.now + lease.next_exchange_s, lambda: self._ask(worker))

        self._at(self.now + self.setup.lag_s / 2, renew)

    def _outcome(self) -> VirtualRun:
        ticks, changes = self.core.drain_records()
        done = np.array(self.finished, dtype=np.float64).reshape(-1, 3)
        makespan = float(done[:, 0].max()) if len(done) and not self.left else self.now
        return VirtualRun(
            makespan_s=makespan,
            done_at=done[:, 0],
            rtt_s=done[:, 1],
            work=done[:, 2],
            rejections=self.rejections,
            attempts=self.attempts,
            unfinished=self.left,
            peak_in_flight=self.peak,
            mean_in_flight=self.area / makespan if makespan else 0.0,
            preemptions=self.model.preemptions,
            ticks=ticks,
            changes=changes,
        )


def run_virtual(law: Law, model: ServerModel, jobs: Sequence[Job], *, setup: VirtualSetup | None = None) -> VirtualRun:
    """Run `jobs` under `law` against `model` until all are done or the horizon is reached."""
    return _Cluster(law, model, jobs, setup or VirtualSetup()).run()
