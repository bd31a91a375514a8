"""One run in virtual time: a controller, its workers, and the requests they have out. Driven by a World's clock."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from evalpipe.control.breaker import Breaker
from evalpipe.control.core import ControlCore
from evalpipe.control.law import Law
from evalpipe.control.lease import Lease, Report
from evalpipe.control.observation import Outcome, Sample
from evalpipe.control.retry import RetryPolicy
from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup
from evalpipe.sim.virtual_worker import Sent, VirtualWorker

TIMED_OUT = Rejection(0, None, "timeout")
BRAKING = frozenset({"rate_limited", "overloaded", "reset"})  # as runtime/worker.py
GONE = frozenset({"connect_failed", "reset", "timeout"})  # to the breaker, as runtime/triage.py
QUEUE_S = 0.5  # between two looks at the server's queue


class Clock(Protocol):
    """What a cluster needs of the world it lives in."""

    now: float
    model: ServerModel
    running_s: float

    def at(self, when: float, action: Callable[[], None]) -> None: ...


class Cluster:
    """See evalpipe/sim/virtual.py."""

    def __init__(self, world: Clock, law: Law, jobs: Sequence[Job], setup: VirtualSetup) -> None:
        self._world, self._model, self._setup = world, world.model, setup
        self._core = ControlCore(law, exchange_s=setup.exchange_s, quota=setup.quota)
        self._backlog = deque(jobs)
        self._left = len(self._backlog)
        self._workers = [VirtualWorker(f"w{i}", is_sampling=setup.is_sampling) for i in range(setup.workers)]
        self._breakers = {worker.name: Breaker() for worker in self._workers}
        self._retry, self._rng = RetryPolicy(), random.Random(setup.seed)
        self._sent: dict[int, Sent] = {}  # by job
        self._tickets: dict[int, int] = {}  # of the breaker, by job
        self._hidden: set[int] = set()  # jobs that began, though nothing of it is seen
        self._tries: dict[int, int] = {}  # attempts that failed
        self._rejections = self._failures = self._attempts = self._peak = self._preemptions = 0
        self._first_peak: int | None = None  # None: no first token yet
        self._area, self._area_at = 0.0, setup.starts_at_s  # request-seconds in flight, until when
        self._ended_at: float | None = None
        self._dispatched: tuple[float, float] | None = None  # (seconds, the server's request-seconds) at that moment
        self._running_before = 0.0
        self._finished: list[tuple[int, int, float, float, float, float]] = []
        self._failed_at: list[float] = []
        self._queue: list[tuple[float, int]] = []

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def start(self) -> None:
        start_s, every_s = self._setup.starts_at_s, self._setup.exchange_s / len(self._workers)
        self._world.at(start_s, self._begin)
        for index, worker in enumerate(self._workers):
            self._exchange_at(start_s + index * every_s, worker)

    def on_event(self, event: Event) -> None:
        sent = self._sent[event.job_id]
        if event.kind == "first_token":
            self._on_begun(sent, event.at)
        elif event.kind == "done":
            self._on_done(sent, event.at)
        elif event.kind == "preempted":
            self._preemptions += 1
        else:
            assert event.rejection is not None, "what failed says why"
            self._on_failed(sent, event.rejection, event.at)

    def outcome(self) -> VirtualRun:
        ticks, changes = self._core.drain_records()
        start_s = self._setup.starts_at_s
        end = self._world.now if self._ended_at is None else self._ended_at
        self._count_area(end)
        dispatched_at, running_s = self._dispatched or (end, self._world.running_s)
        done = np.array([row[2:] for row in self._finished], dtype=np.float64).reshape(-1, 4)
        return VirtualRun(
            makespan_s=max(end - start_s, 0.0),
            job_id=np.array([row[0] for row in self._finished], dtype=np.int64),
            done_at=done[:, 0],
            rtt_s=done[:, 1],
            ttft_s=done[:, 2],
            work=done[:, 3],
            tokens=np.array([row[1] for row in self._finished], dtype=np.int64),
            rejections=self._rejections,
            failures=self._failures,
            failed_at=np.array(self._failed_at, dtype=np.float64),
            attempts=self._attempts,
            unfinished=self._left,
            peak_in_flight=self._peak,
            first_peak=self._peak if self._first_peak is None else self._first_peak,
            mean_in_flight=self._area / (end - start_s) if end > start_s else 0.0,
            preemptions=self._preemptions,
            running_s=running_s - self._running_before,
            dispatched_s=max(dispatched_at - start_s, 0.0),
            queue=np.array(self._queue, dtype=np.float64).reshape(-1, 2),
            ticks=ticks,
            changes=changes,
        )

    # --- sending ---

    def _begin(self) -> None:
        self._running_before = self._world.running_s

    def _dispatch(self, worker: VirtualWorker) -> None:
        """Send what the worker has permits for; jobs to be tried again go first."""
        breaker, now = self._breakers[worker.name], self._world.now
        while (worker.retries or self._backlog) and breaker.can_send(now=now):
            permit = worker.lease.take(now=now)
            if permit is None:
                return
            job = worker.retries.popleft() if worker.retries else self._next_job()
            self._tickets[job.job_id] = breaker.on_send()
            self._send(Sent(job, worker, permit, now))

    def _next_job(self) -> Job:
        job = self._backlog.popleft()
        if not self._backlog:
            self._dispatched = (self._world.now, self._world.running_s)
        return job

    def _send(self, sent: Sent) -> None:
        setup, now = self._setup, self._world.now
        self._attempts += 1
        self._count_area(now)
        self._sent[sent.job.job_id] = sent
        sent.worker.on_sent(sent)
        if setup.deadline_s is not None:
            self._world.at(now + setup.deadline_s, lambda: self._time_out(sent))
        delay_s = setup.overhead_s + setup.gateway.delay_s(now=now - setup.starts_at_s, rng=self._rng)
        if delay_s > 0:
            self._world.at(now + delay_s, lambda: self._arrive(sent))
        else:
            self._arrive(sent)

    def _arrive(self, sent: Sent) -> None:
        if not self._is_out(sent):
            return
        rejection = self._model.submit(sent.job, now=self._world.now)
        if rejection is None:
            self._peak = max(self._peak, len(self._sent))
        else:
            self._on_failed(sent, rejection, self._world.now)

    def _is_out(self, sent: Sent) -> bool:
        return self._sent.get(sent.job.job_id) is sent

    def _time_out(self, sent: Sent) -> None:
        if self._is_out(sent):
            self._model.cancel(sent.job.job_id, now=self._world.now)
            self._on_failed(sent, TIMED_OUT, self._world.now)

    # --- what comes back ---

    def _on_begun(self, sent: Sent, at: float) -> None:
        self._first_peak = self._peak if self._first_peak is None else self._first_peak
        gateway = self._setup.gateway
        if not gateway.hides_streams:
            sent.worker.on_first_token(sent, at)
            return
        self._hidden.add(sent.job.job_id)
        if not gateway.is_buffering:
            self._world.at(at + gateway.silent_s, lambda: self._reveal(sent))

    def _reveal(self, sent: Sent) -> None:
        if self._is_out(sent) and sent.job.job_id in self._hidden:
            self._hidden.discard(sent.job.job_id)
            sent.worker.on_first_token(sent, self._world.now)

    def _on_done(self, sent: Sent, at: float) -> None:
        job = sent.job
        self._end(sent, sent.sample(at), at)
        self._breakers[sent.worker.name].on_answer(self._tickets.pop(job.job_id), now=at)
        self._left -= 1
        seen_at = at if sent.first_at is None else sent.first_at
        row = (at, at - sent.sent_at, seen_at - sent.sent_at, job.work)
        self._finished.append((job.job_id, job.prompt_tokens + job.output_tokens, *row))
        if self.is_done:
            self._ended_at = at
        self._dispatch(sent.worker)

    def _on_failed(self, sent: Sent, rejection: Rejection, at: float) -> None:
        worker, job = sent.worker, sent.job
        if rejection.status == 400:
            raise ConfigError(f"job {job.job_id} can never run on this server ({rejection.code}): {job}")
        sample = _sample_of(sent, rejection, at)
        self._end(sent, sample, at)
        self._tell_breaker(sent, sample.kind, at)
        self._failed_at.append(at)
        if sample.outcome is Outcome.DROPPED:
            self._rejections += 1
        else:
            self._failures += 1
        if sample.kind in BRAKING:
            worker.lease.brake()
        tries = self._tries[job.job_id] = self._tries.get(job.job_id, 0) + 1
        # a lone reset most often is a connection that the server had closed: at once, as runtime/triage.py
        is_lone = sample.kind == "reset" and tries == 1
        delay_s = 0.0 if is_lone else self._retry.delay(tries, rejection.retry_after_s, self._rng)
        self._world.at(at + delay_s, lambda: self._try_again(worker, job))

    def _tell_breaker(self, sent: Sent, kind: str, at: float) -> None:
        breaker, ticket = self._breakers[sent.worker.name], self._tickets.pop(sent.job.job_id)
        if kind in GONE and sent.first_at is None:
            is_evidence = kind == "connect_failed" or sent.job.job_id not in self._tries
            breaker.on_failure(ticket, now=at, is_evidence=is_evidence)
        else:
            breaker.on_answer(ticket, now=at)

    def _end(self, sent: Sent, sample: Sample, at: float) -> None:
        self._count_area(at)
        self._hidden.discard(sent.job.job_id)
        del self._sent[sent.job.job_id]
        sent.worker.on_ended(sent, sample)

    def _try_again(self, worker: VirtualWorker, job: Job) -> None:
        worker.retries.append(job)
        self._dispatch(worker)

    def _count_area(self, now: float) -> None:
        self._area += len(self._sent) * (now - self._area_at)
        self._area_at = now

    # --- the controller ---

    def _exchange_at(self, when: float, worker: VirtualWorker) -> None:
        """Schedule one exchange: asked at `when`, at the controller half a lag later, answered after another half."""
        world, half_s = self._world, self._setup.lag_s / 2

        def ask() -> None:
            report = self._report(worker)
            self._note_queue()
            world.at(world.now + half_s, lambda: answer(report))

        def answer(report: Report) -> None:
            lease = self._core.exchange(report, now=world.now)
            world.at(world.now + half_s, lambda: renew(lease))

        def renew(lease: Lease) -> None:
            worker.renew(lease)
            self._dispatch(worker)
            if not self.is_done:
                self._exchange_at(world.now + lease.next_exchange_s, worker)

        world.at(when, ask)

    def _report(self, worker: VirtualWorker) -> Report:
        want = len(worker.retries) + len(self._backlog)
        return worker.report(want=want, tokens_of=self._model.tokens_of, now=self._world.now)

    def _note_queue(self) -> None:
        if not self._queue or self._world.now >= self._queue[-1][0] + QUEUE_S:
            self._queue.append((self._world.now, self._model.waiting))


def _sample_of(sent: Sent, rejection: Rejection, at: float) -> Sample:
    """What control sees of an attempt that failed; a connection that failed says nothing about load."""
    if rejection.status:
        return sent.sample(at, rejection)
    kind = "cut" if rejection.code == "reset" and sent.first_at is not None else rejection.code
    return replace(sent.sample(at), outcome=Outcome.IGNORED, kind=kind, prompt_tokens=0, output_tokens=0)
