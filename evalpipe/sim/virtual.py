"""Virtual time: the real control code (law, LeaseBook, WorkerLease, RetryPolicy) against the server models, no clock.

Thousands of requests cost about a second. Workers, their exchange interval and the delay of a call to the controller
are parameters, so what is tuned here meets the same feedback it meets on a cluster. Left out: workers never
die here, and no stream is cut.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from evalpipe.control.core import ControlCore
from evalpipe.control.law import Law
from evalpipe.control.lease import Lease, Report
from evalpipe.control.observation import Sample
from evalpipe.control.retry import RetryPolicy
from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup
from evalpipe.sim.virtual_worker import Sent, VirtualWorker


class _Cluster:
    """One virtual run in progress: events in time order, oldest first."""

    def __init__(self, law: Law, model: ServerModel, jobs: Sequence[Job], setup: VirtualSetup) -> None:
        self._core = ControlCore(law, exchange_s=setup.exchange_s)
        self._model, self._setup = model, setup
        self._backlog = deque(jobs)
        self._left = len(self._backlog)
        self._workers = [VirtualWorker(f"w{i}") for i in range(setup.workers)]
        self._retry, self._rng = RetryPolicy(), random.Random(setup.seed)
        self._now = 0.0
        self._sent: dict[int, Sent] = {}
        self._failures: dict[int, int] = {}
        self._finished: list[tuple[int, float, float, float, float]] = []
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
            sent.worker.on_first_token(sent, event.at)
        elif event.kind == "done":
            self._on_done(sent, event.at)
        else:
            sent.worker.on_preempted(sent, event.at, self._model.tokens_of(event.job_id))

    def _on_done(self, sent: Sent, at: float) -> None:
        self._end(sent, sent.sample(at))
        self._left -= 1
        assert sent.first_at is not None, "an answer has a first token"
        ttft_s = sent.first_at - sent.sent_at
        self._finished.append((sent.job.job_id, at, at - sent.sent_at, ttft_s, sent.job.work))
        self._dispatch(sent.worker)

    def _end(self, sent: Sent, sample: Sample) -> None:
        del self._sent[sent.job.job_id]
        sent.worker.on_ended(sent, sample)

    def _dispatch(self, worker: VirtualWorker) -> None:
        """Send what the worker has permits for; jobs to be tried again go first."""
        while worker.retries or self._backlog:
            permit = worker.lease.take(now=self._now)
            if permit is None:
                return
            job = worker.retries.popleft() if worker.retries else self._backlog.popleft()
            self._send(Sent(job, worker, permit, self._now))

    def _send(self, sent: Sent) -> None:
        self._attempts += 1
        self._sent[sent.job.job_id] = sent
        sent.worker.on_sent(sent)
        if self._setup.overhead_s:
            self._at(self._now + self._setup.overhead_s, lambda: self._arrive(sent))
        else:
            self._arrive(sent)

    def _arrive(self, sent: Sent) -> None:
        rejection = self._model.submit(sent.job, now=self._now)
        if rejection is None:
            self._peak = max(self._peak, len(self._sent))
        else:
            self._on_rejected(sent, rejection)

    def _on_rejected(self, sent: Sent, rejection: Rejection) -> None:
        worker, job = sent.worker, sent.job
        if rejection.status == 400:
            raise ConfigError(f"job {job.job_id} can never run on this server ({rejection.code}): {job}")
        self._end(sent, sent.sample(self._now, rejection))
        self._rejections += 1
        worker.lease.brake()
        failures = self._failures[job.job_id] = self._failures.get(job.job_id, 0) + 1
        delay = self._retry.delay(failures, rejection.retry_after_s, self._rng)
        self._at(self._now + delay, lambda: self._try_again(worker, job))

    def _try_again(self, worker: VirtualWorker, job: Job) -> None:
        worker.retries.append(job)
        self._dispatch(worker)

    def _exchange_at(self, when: float, worker: VirtualWorker) -> None:
        """Schedule one exchange: asked at `when`, at the controller half a lag later, answered after another half."""
        half_s = self._setup.lag_s / 2

        def ask() -> None:
            report = self._report(worker)
            self._at(self._now + half_s, lambda: answer(report))

        def answer(report: Report) -> None:
            lease = self._core.exchange(report, now=self._now)
            self._at(self._now + half_s, lambda: renew(lease))

        def renew(lease: Lease) -> None:
            worker.renew(lease)
            self._dispatch(worker)
            self._exchange_at(self._now + lease.next_exchange_s, worker)

        self._at(when, ask)

    def _report(self, worker: VirtualWorker) -> Report:
        want = len(worker.retries) + len(self._backlog)
        return worker.report(
            want=want, output_tokens=self._take_tokens(), tokens_of=self._model.tokens_of, now=self._now
        )

    def _take_tokens(self) -> int:
        """Return the output tokens of the whole cluster since anybody told of them: the core adds workers up anyway."""
        told, self._tokens_told = self._tokens_told, self._model.tokens_emitted
        return self._tokens_told - told

    def _outcome(self) -> VirtualRun:
        ticks, changes = self._core.drain_records()
        done = np.array([row[1:] for row in self._finished], dtype=np.float64).reshape(-1, 4)
        return VirtualRun(
            makespan_s=self._now,
            job_id=np.array([row[0] for row in self._finished], dtype=np.int64),
            done_at=done[:, 0],
            rtt_s=done[:, 1],
            ttft_s=done[:, 2],
            work=done[:, 3],
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
