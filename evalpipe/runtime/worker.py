"""The worker's loop: one asyncio loop that sends what the gate permits and keeps what comes back.

No Ray here: the actor in runtime/actors.py is a shell around it, and so is a test. Order inside a request: the answer
is validated, the permit goes back, the answer is scored and its row buffered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from evalpipe.config import Config
from evalpipe.control.lease import Lease, Permit, Report
from evalpipe.control.retry import RetryPolicy
from evalpipe.control.streams import is_in_sample
from evalpipe.endpoint.client import Endpoint, derive_deadline
from evalpipe.errors import DataError, EndpointError, EvalPipeError, Failure
from evalpipe.prompt import Prompter, estimate_tokens
from evalpipe.records import Completion, Key, Request, Result
from evalpipe.runtime import rows
from evalpipe.runtime.clock import REAL, Clock
from evalpipe.runtime.gates import LimitGate
from evalpipe.runtime.judge import Judge
from evalpipe.runtime.messages import Poll, PollReply, WorkerSpec
from evalpipe.runtime.observer import Observer, Watch
from evalpipe.runtime.outbox import Outbox
from evalpipe.runtime.queue import Task, TaskQueue
from evalpipe.runtime.tally import Tally, Usage
from evalpipe.runtime.triage import Action, Ticket, Triage, Verdict, share_of_budget
from evalpipe.store.objects import ObjectStore
from evalpipe.store.open import open_store

log = logging.getLogger(__name__)

#: Kinds at which a worker brakes its own new sends at once: overload, or a connection the server threw away.
BRAKING = frozenset({"rate_limited", "overloaded", "reset"})
EXCHANGE_TIMEOUT_S = 5.0
MAX_UNSCORED = 100  # answers that wait for a slow scorer: more would be lost in a crash
WANT_S = 1.0  # a worker keeps work for about so long, or twice its permits

Exchange = Callable[[Report], Awaitable[Lease]]


class Sender(Protocol):
    """What the loop asks of an endpoint; endpoint.client.Endpoint is the real one."""

    async def send(
        self, request: Request, *, trace: str | None = None, deadline_s: float, progress: Watch | None = None
    ) -> Completion: ...

    async def aclose(self) -> None: ...


class WorkerLoop:
    """Send items, keep results. Built and used inside one event loop; `poll` is the driver's only call."""

    def __init__(
        self,
        spec: WorkerSpec,
        exchange: Exchange,
        *,
        sender: Sender | None = None,
        store: ObjectStore | None = None,
        clock: Clock = REAL,
    ) -> None:
        self._spec, self._exchange, self._clock = spec, exchange, clock
        config = spec.config
        self._gate = LimitGate(worker=spec.name, incarnation=spec.incarnation, clock=clock.now)
        self._queue, self._observer = TaskQueue(), Observer(clock.now)
        self._outbox = Outbox(store or open_store(spec.store_url), spec)
        self._sender: Sender = sender or Endpoint(
            config.endpoint,
            config.sampling,
            model=spec.model,
            base_url=spec.base_url,
            cap=spec.cap,
            on_quota=self._gate.hear,
        )
        self._sampling = random.Random(f"{spec.writer}/{spec.name}/{spec.incarnation}/stream")
        self._prompter, self._judge = Prompter(config.prompt), Judge(config.scorer)
        self._triage = Triage(
            retry=RetryPolicy(max_attempts=config.endpoint.max_attempts),
            budget=share_of_budget(workers=workers_of(config)),
            rng=random.Random(f"{spec.writer}/{spec.name}/{spec.incarnation}"),
        )
        self._deadline_s = config.endpoint.deadline_s or derive_deadline(config.sampling.max_tokens)
        self._origin = rows.Origin(
            f"{spec.name}.{spec.incarnation}", spec.writer_epoch, spec.base_url, spec.model, config.run.store_prompts
        )
        self._trace = config.is_simulated or config.endpoint.trace_header
        self._work = asyncio.Event()
        self._known: set[int] = set()
        self._released: list[Key] = []
        self._tally = Tally(clock.now)
        self._fatal: Failure | None = None
        self._last_failure: Failure | None = None
        self._drain = False
        self._is_drained = False
        self._usage = Usage(clock.now)
        self._running: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to exchange, send and flush. Call once, inside the event loop."""
        self._loops = [
            asyncio.create_task(loop(), name=loop.__name__)
            for loop in (self._exchange_loop, self._send_loop, self._flush_loop)
        ]

    async def poll(self, poll: Poll) -> PollReply:
        """Take new shards, answer with what happened. May be repeated: shards are known by their id."""
        self._check_loops()
        for shard in poll.assign:
            if shard.shard_id not in self._known:
                self._known.add(shard.shard_id)
                now = self._clock.now()
                self._queue.add(Task(item, ready_at=now) for item in shard.items)
        if poll.drain and not self._drain:
            self._drain = True
            self._released.extend(self._queue.drop_all())
        self._work.set()
        if self._drain and not self._running:
            await self._outbox.flush(now=self._clock.now(), everything=True)
            self._is_drained = self._outbox.unwritten == 0
        return self._reply(poll)

    async def stop(self) -> None:
        """Cancel everything and close the client; what was not flushed is lost, as in a crash."""
        for task in [*self._loops, *self._running]:
            task.cancel()
        await asyncio.gather(*self._loops, *self._running, return_exceptions=True)
        await self._judge.aclose()
        await self._sender.aclose()

    def _reply(self, poll: Poll) -> PollReply:
        cpu_share, lag_s = self._usage.read()
        in_hand = len(self._queue)
        wants = max(2 * self._gate.permits, self._tally.recent_rate() * WANT_S, 8) - in_hand
        stopped = self._is_stopped or self._gate.is_expired
        return PollReply(
            written=self._outbox.pending(acked=poll.acked),
            wants=0 if stopped else max(int(wants), 0),
            queued=in_hand,
            in_flight=self._gate.in_flight,
            unwritten=self._outbox.unwritten,
            counters=self._tally.counters(),
            cpu_share=cpu_share,
            lag_s=lag_s,
            cpu_s=time.process_time(),
            rtt_s=self._tally.take_rtts(),
            last_failure=self._last_failure,
            fatal=self._fatal or self._storage_failure(),
            is_lost=self._gate.is_expired,
            signs_of_life=self._observer.signs_of_life,
            released=tuple(self._released),
            storage=self._outbox.trouble,
            is_drained=self._is_drained,
        )

    def _storage_failure(self) -> Failure | None:
        return Failure("storage", message=self._outbox.last_error) if self._outbox.is_broken else None

    def _check_loops(self) -> None:
        """Bring the end of a background loop to the driver: a worker that cannot work must not look idle."""
        for task in self._loops:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                log.error("loop=%s", task.get_name(), exc_info=error)
                self._fatal = self._fatal or Failure("internal", message=f"{task.get_name()}: {_where(error)}")

    # --- control ---

    async def _exchange_loop(self) -> None:
        while True:
            want = 0 if self._is_stopped else self._ready()
            report = self._gate.report(self._observer.take(), want=want)
            next_s = await self._exchange_once(report)
            self._usage.note_lag(await self._sleep(next_s))

    async def _sleep(self, seconds: float) -> float:
        """Sleep and return how much later than asked it woke: the lateness of the event loop."""
        began = self._clock.now()
        await asyncio.sleep(seconds)
        return self._clock.now() - began - seconds

    async def _exchange_once(self, report: Report) -> float:
        """Send one report until it is answered: it carries samples that must not get lost, and may be repeated."""
        while True:
            try:
                async with asyncio.timeout(EXCHANGE_TIMEOUT_S):  # wait_for of Python 3.11 may swallow a cancel
                    lease = await self._exchange(report)
            except (TimeoutError, ConnectionError) as error:
                log.warning("exchange worker=%s failed=%s", self._spec.name, type(error).__name__)
                await asyncio.sleep(0.2)
                continue
            self._gate.renew(lease)
            self._observer.renew(lease)
            self._work.set()
            return lease.next_exchange_s

    @property
    def _is_stopped(self) -> bool:
        is_behind = self._outbox.is_full or self._judge.waiting >= MAX_UNSCORED
        return self._drain or self._fatal is not None or is_behind

    # --- sending ---

    async def _send_loop(self) -> None:
        """Give each ready item a permit, in order; the item waits in the queue, not in a task of its own."""
        while True:
            await self._until_ready()
            permit = await self._gate.next()
            task = self._next_task() if self._can_send() else None
            request = self._render(task) if task is not None else None
            if task is None or request is None:
                self._gate.give_back()
                continue
            ticket = self._triage.on_send(task, now=self._clock.now())
            runner = asyncio.create_task(self._attempt(task, request, permit, ticket))
            self._running.add(runner)
            runner.add_done_callback(self._running.discard)

    async def _until_ready(self) -> None:
        while not self._can_send():
            self._work.clear()
            now = self._clock.now()
            is_held = self._is_stopped or not self._triage.can_send(now=now)
            due = None if is_held else self._queue.next_due()
            timeout = 0.5 if due is None else min(max(due - now, 0.0), 0.5)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._work.wait()

    def _can_send(self) -> bool:
        return not self._is_stopped and self._ready() > 0 and self._triage.can_send(now=self._clock.now())

    def _ready(self) -> int:
        now = self._clock.now()
        return self._queue.ready(now=now, retries=self._triage.retries(now=now))

    def _next_task(self) -> Task:
        return self._queue.pop(retries=self._triage.retries(now=self._clock.now()))

    async def _attempt(self, task: Task, request: Request, permit: Permit, ticket: Ticket) -> None:
        """Make one attempt, give the permit back, keep what came of it; never raises."""
        task.tries += 1
        task.wait_s += max(self._clock.now() - task.ready_at, 0.0)
        sent = rows.Sent(permit, self._clock.wall())
        try:
            try:
                completion = await self._send(task, request, sent, ticket)
            finally:
                self._gate.give_back()
                self._work.set()
            if completion is not None:
                verdict = await self._judge.judge(task.item.example, completion)
                self._keep(rows.answered(task, request, sent, completion, verdict, self._origin))
        except Exception as error:
            log.exception("attempt worker=%s item=%s", self._spec.name, task.item.example.item_id)
            self._fatal = self._fatal or Failure("internal", message=_where(error))

    def _render(self, task: Task) -> Request | None:
        """Make the request, once; an item whose prompt cannot be made is kept as a failure, and None returned."""
        if task.request is None:
            try:
                task.request = self._prompter.request(task.item)
            except DataError as error:
                self._keep(rows.unsent(task, Failure("prompt", message=str(error)), self._origin))
            except EvalPipeError as error:
                self._fatal = self._fatal or Failure("config", message=str(error))
        return task.request

    async def _send(self, task: Task, request: Request, sent: rows.Sent, ticket: Ticket) -> Completion | None:
        """Return the answer; None where there is none, and what follows from that is arranged."""
        is_streamed = self._is_streamed(sent.permit)
        watch = self._observer.begin(estimate_tokens(request.prompt), is_streamed=is_streamed)
        progress = watch if is_streamed else None
        trace = self._trace_of(task, sent.permit) if self._trace else None
        deadline_s = self._triage.deadline_s(task, self._deadline_s)
        try:
            completion = await self._sender.send(request, trace=trace, deadline_s=deadline_s, progress=progress)
        except EndpointError as error:
            self._observer.failed(watch, error.failure, sent.permit)
            self._outbox.add_attempt(rows.attempt(task, sent, error.failure, self._origin))
            verdict = self._triage.on_failure(
                task, error, ticket, now=self._clock.now(), had_token=watch.tokens_seen > 0
            )
            self._on_failure(task, request, sent, error.failure, verdict)
            return None
        except asyncio.CancelledError:
            self._observer.abandoned(watch)
            raise
        self._triage.on_answer(ticket, now=self._clock.now())
        self._observer.answered(watch, completion, sent.permit)
        self._outbox.add_attempt(rows.attempt(task, sent, completion, self._origin))
        self._tally.note_answer(completion)
        return completion

    def _is_streamed(self, permit: Permit) -> bool:
        stream = self._spec.config.endpoint.stream
        return stream == "all" or (stream == "sample" and is_in_sample(permit.in_flight_at_send, self._sampling))

    def _on_failure(self, task: Task, request: Request, sent: rows.Sent, failure: Failure, verdict: Verdict) -> None:
        self._last_failure = failure
        if failure.kind in BRAKING:
            self._gate.brake()
        if verdict.action is Action.STOP:
            self._fatal = self._fatal or failure
            self._released.append(task.key)
        elif verdict.action is Action.FAIL:
            self._keep(rows.failed(task, request, sent, failure, self._origin))
        else:
            self._send_again(task, delay_s=verdict.delay_s)

    def _send_again(self, task: Task, *, delay_s: float) -> None:
        self._tally.retries += 1
        task.retry_wait_s += delay_s
        task.ready_at = self._clock.now() + delay_s
        if self._drain:
            self._released.append(task.key)
        else:
            self._queue.again(task, at=task.ready_at)

    def _keep(self, result: Result) -> None:
        self._outbox.add(result)
        self._tally.note_result(result)

    def _trace_of(self, task: Task, permit: Permit) -> str:
        key = task.key
        name, item = quote(self._spec.run_name, safe=""), quote(task.item.example.item_id, safe="")
        return f"{name}/{item}/{key.repeat}/{key.generation}/{task.tries};{permit.epoch};{permit.limit}"

    # --- storing ---

    async def _flush_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._spec.config.run.flush_s):
                    await self._outbox.is_due.wait()
            await self._outbox.flush(now=self._clock.now())


def workers_of(config: Config) -> int:
    """Return how many workers share the run's retry budget; the driver settles "auto" before it starts one."""
    return config.run.workers if isinstance(config.run.workers, int) else 1


def _where(error: BaseException) -> str:
    """Say what was raised and at which line of ours; no values, which may be prompts."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "evalpipe" in frame.filename]
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"a bug in evalpipe: {type(error).__name__}{place} in a worker"
