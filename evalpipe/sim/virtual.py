"""Virtual time: the real control code (law, LeaseBook, WorkerLease, RetryPolicy) against the server models, no clock.

Thousands of requests cost about a second. Workers, their exchange interval and the delay of a call to the controller
are parameters, so what is tuned here meets the same feedback it meets on a cluster. Left out: first tokens that are
overdue and streams that stall are not counted yet (no law reads them), and workers never die here.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from evalpipe.control.core import ControlCore
from evalpipe.control.law import Law
from evalpipe.control.lease import Lease, Permit, Report, WorkerLease
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.retry import RetryPolicy
from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

# What the failure table makes of a refusal (endpoint/failures.py, which is a layer beside this one).
REJECTED_KINDS = {429: "rate_limited", 503: "overloaded"}


@dataclass(slots=True, eq=False)
class _Sent:
    job: Job
    worker: _Worker
    permit: Permit
    sent_at: float
    first_at: float | None = None

    def sample(self, at: float, rejection: Rejection | None = None) -> Sample:
        return Sample(
            Outcome.OK if rejection is None else Outcome.DROPPED,
            rtt_s=at - self.sent_at,
            kind="ok" if rejection is None else REJECTED_KINDS.get(rejection.status, "overloaded"),
            ttft_s=None if self.first_at is None else self.first_at - self.sent_at,
            prompt_tokens=self.job.prompt_tokens if rejection is None else 0,
            output_tokens=self.job.output_tokens if rejection is None else 0,
            epoch=self.permit.epoch,
            limit=self.permit.limit,
            in_flight_at_send=self.permit.in_flight_at_send,
            retry_after_s=None if rejection is None else rejection.retry_after_s,
        )


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    lease: WorkerLease = field(default_factory=WorkerLease)
    samples: list[Sample] = field(default_factory=list)
    retries: deque[Job] = field(default_factory=deque)
    waiting: int = 0  # in flight without a first token

    def take_samples(self) -> tuple[Sample, ...]:
        samples, self.samples = tuple(self.samples), []
        return samples


class _Cluster:
    """One virtual run in progress: events in time order, oldest first."""

    def __init__(self, law: Law, model: ServerModel, jobs: Sequence[Job], setup: VirtualSetup) -> None:
        self._core = ControlCore(law, exchange_s=setup.exchange_s)
        self._model, self._setup = model, setup
        self._backlog = deque(jobs)
        self._left = len(self._backlog)
        self._workers = [_Worker(f"w{i}") for i in range(setup.workers)]
        self._retry, self._rng = RetryPolicy(), random.Random(setup.seed)
        self._now = 0.0
        self._sent: dict[int, _Sent] = {}
        self._failures: dict[int, int] = {}
        self._finished: list[tuple[int, float, float, float]] = []
        self._rejections = self._attempts = self._peak = 0
        self._tokens_told = 0
        self._area = 0.0  # request-seconds in flight
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self) -> VirtualRun:
        for index, worker in enumerate(self._workers):
            self._exchange_at(index * self._setup.exchange_s / len(self._workers), worker)
        while self._left and self._now < self._setup.horizon_s:
            self._step()
        return self._outcome()

    def _step(self) -> None:
        """Move to the next instant; the server's own events come before ours at the same instant."""
        # the heap is never empty: every worker has an exchange ahead of it
        at = min(self._heap[0][0], self._model.next_event_at(), self._setup.horizon_s)
        self._area += len(self._sent) * (at - self._now)
        self._now = at
        for event in self._model.advance(at):
            self._on_event(event)
        while self._heap and self._heap[0][0] <= at:
            heapq.heappop(self._heap)[2]()

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def _on_event(self, event: Event) -> None:
        sent = self._sent[event.job_id]
        if event.kind == "first_token":
            sent.first_at = event.at
            sent.worker.waiting -= 1
        elif event.kind == "done":
            self._on_done(sent, event.at)

    def _on_done(self, sent: _Sent, at: float) -> None:
        self._end(sent)
        self._left -= 1
        self._finished.append((sent.job.job_id, at, at - sent.sent_at, sent.job.work))
        sent.worker.samples.append(sent.sample(at))
        self._dispatch(sent.worker)

    def _end(self, sent: _Sent) -> None:
        del self._sent[sent.job.job_id]
        sent.worker.lease.give_back()
        sent.worker.waiting -= sent.first_at is None

    def _dispatch(self, worker: _Worker) -> None:
        """Send what the worker has permits for; jobs to be tried again go first."""
        while worker.retries or self._backlog:
            permit = worker.lease.take(now=self._now)
            if permit is None:
                return
            job = worker.retries.popleft() if worker.retries else self._backlog.popleft()
            self._send(_Sent(job, worker, permit, self._now))

    def _send(self, sent: _Sent) -> None:
        self._attempts += 1
        self._sent[sent.job.job_id] = sent
        sent.worker.waiting += 1
        if self._setup.overhead_s:
            self._at(self._now + self._setup.overhead_s, lambda: self._arrive(sent))
        else:
            self._arrive(sent)

    def _arrive(self, sent: _Sent) -> None:
        rejection = self._model.submit(sent.job, now=self._now)
        if rejection is None:
            self._peak = max(self._peak, len(self._sent))
        else:
            self._on_rejected(sent, rejection)

    def _on_rejected(self, sent: _Sent, rejection: Rejection) -> None:
        worker, job = sent.worker, sent.job
        if rejection.status == 400:
            raise ConfigError(f"job {job.job_id} can never run on this server ({rejection.code}): {job}")
        self._end(sent)
        self._rejections += 1
        worker.lease.brake()
        worker.samples.append(sent.sample(self._now, rejection))
        failures = self._failures[job.job_id] = self._failures.get(job.job_id, 0) + 1
        delay = self._retry.delay(failures, rejection.retry_after_s, self._rng)
        self._at(self._now + delay, lambda: self._try_again(worker, job))

    def _try_again(self, worker: _Worker, job: Job) -> None:
        worker.retries.append(job)
        self._dispatch(worker)

    def _exchange_at(self, when: float, worker: _Worker) -> None:
        """Schedule one exchange: asked at `when`, at the controller half a lag later, answered after another half."""
        half_s = self._setup.lag_s / 2

        def ask() -> None:
            report = self._report(worker)
            self._at(self._now + half_s, lambda: answer(report))

        def answer(report: Report) -> None:
            lease = self._core.exchange(report, now=self._now)
            self._at(self._now + half_s, lambda: renew(lease))

        def renew(lease: Lease) -> None:
            worker.lease.renew(lease)
            self._dispatch(worker)
            self._exchange_at(self._now + lease.next_exchange_s, worker)

        self._at(when, ask)

    def _report(self, worker: _Worker) -> Report:
        want = len(worker.retries) + len(self._backlog)
        sequence, in_flight, peak, held = worker.lease.ask(want=want, now=self._now)
        samples = worker.take_samples()
        observation = Observation(
            in_flight=in_flight,
            in_flight_peak=peak,
            waiting=worker.waiting,
            prefill_tokens=sum(sample.prompt_tokens for sample in samples),
            output_tokens=self._take_tokens(),
            samples=samples,
        )
        return Report(worker.name, 1, sequence, held, want, observation)

    def _take_tokens(self) -> int:
        """Return the output tokens of the whole cluster since anybody told of them: the core adds workers up anyway."""
        told, self._tokens_told = self._tokens_told, self._model.tokens_emitted
        return self._tokens_told - told

    def _outcome(self) -> VirtualRun:
        ticks, changes = self._core.drain_records()
        done = np.array([row[1:] for row in self._finished], dtype=np.float64).reshape(-1, 3)
        return VirtualRun(
            makespan_s=self._now,
            job_id=np.array([row[0] for row in self._finished], dtype=np.int64),
            done_at=done[:, 0],
            rtt_s=done[:, 1],
            work=done[:, 2],
            rejections=self._rejections,
            attempts=self._attempts,
            unfinished=self._left,
            peak_in_flight=self._peak,
            mean_in_flight=self._area / self._now if self._now else 0.0,
            preemptions=self._model.preemptions,
            ticks=ticks,
            changes=changes,
        )


def run_virtual(law: Law, model: ServerModel, jobs: Sequence[Job], *, setup: VirtualSetup | None = None) -> VirtualRun:
    """Run `jobs` under `law` against `model` until all are done or the horizon is reached.

    Takes over law and model: both are left as the run ended. Raises ConfigError for a job the server can never run
    and for job ids that are not unique.
    """
    if len({job.job_id for job in jobs}) != len(jobs):
        raise ConfigError(f"job ids must be unique, got {len(jobs)} jobs with repeated ids")
    return _Cluster(law, model, jobs, setup or VirtualSetup()).run()
