"""The driver: one loop that deals out work, commits what comes back, and ends the run with the right exit code.

Each turn collects what came in, commits, deals, and shows. All it knows can be rebuilt from the log, so it may die at
any moment.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from evalpipe.endpoint.failures import KEY_KINDS, TABLE
from evalpipe.errors import Failure, Paused
from evalpipe.runtime.committer import Committer
from evalpipe.runtime.dispenser import CANARIES, Dispenser
from evalpipe.runtime.fleet import Died, Fleet, Replied
from evalpipe.runtime.messages import Poll, PollReply, WorkerSpec
from evalpipe.runtime.progress import Board, Progress
from evalpipe.runtime.recorder import Recorder
from evalpipe.runtime.session import Session, max_limit
from evalpipe.runtime.signals import StopSignals

log = logging.getLogger(__name__)

POLL_S = 0.2  # with work for a second in hand a worker never runs dry between polls
COLLECT_S = 0.05
SHOW_S = 0.5
DRAIN_S = 45.0  # after a signal: time for requests in flight to end
LAST_FILES_S = 10.0  # after the last result: time for the workers' files of attempts
MAX_DEATHS = 20  # worker processes that died without a result in between: something kills every one

#: exit codes (DESIGN section 9)
COMPLETE, RESUMABLE, NO_KEY, NO_ENDPOINT = 0, 75, 77, 78
_OURS = frozenset({"storage", "internal"})  # not the endpoint's fault: the same command may go on later


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. why: one line for a person, "" when everything was done."""

    exit_code: int = COMPLETE
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the driver leaves behind. elapsed_s: its own time; first_request_s: of that, until a request was out."""

    ending: Ending
    progress: Progress
    elapsed_s: float
    first_request_s: float | None
    worker_cpu_s: float


class Pulse(Protocol):
    def beat(self, *, now: float) -> None:
        """Show that this driver lives, if that is due."""


@dataclass(slots=True)
class _Desk:
    """One worker as the driver sees it. wants: items it asked for; has_news: it was dealt work and has not answered.

    is_lost: its lease ran out; it finishes and is replaced. is_idle: nothing in hand and everything written.
    """

    name: str
    incarnation: int = 0
    polled_at: float = 0.0
    wants: int = CANARIES
    finished: int = 0
    answered: int = 0
    cpu_s: float = 0.0
    signs_of_life: int = 0
    has_news: bool = False
    is_lost: bool = False
    is_idle: bool = False

    @property
    def process(self) -> str:
        return f"{self.name}.{self.incarnation}"


class Driver:
    """Do what is owed in `session` with `fleet`. show: called twice a second with a snapshot."""

    def __init__(
        self,
        session: Session,
        *,
        fleet: Fleet,
        committer: Committer,
        recorder: Recorder,
        pulse: Pulse,
        signals: StopSignals,
        workers: int,
        show: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self._session, self._fleet, self._committer, self._recorder = session, fleet, committer, recorder
        self._pulse, self._signals, self._show, self._say = pulse, signals, show, say
        self._desks = {name: _Desk(name) for name in (f"w{number}" for number in range(workers))}
        self._board = Board(max_limit=max_limit(session.config.control))
        self._dispenser = make_dispenser(session, committer)
        self._deaths = 0
        self._ending: Ending | None = None
        self._drain_until: float | None = None
        self._began = self._success_at = self._alive_at = self._failed_at = self._shown_at = time.monotonic()
        self._sent_at: float | None = None
        self._has_success = False
        self._last_failure: Failure | None = None
        self._buried_cpu_s = 0.0

    def run(self) -> Outcome:
        """Work until all is in the log, a signal drained the run, or nothing can succeed.

        Raises Fenced when another driver took the run, Resumable when the controller is gone, OSError when storage is.
        """
        self._spawn(next(iter(self._desks.values())))  # the first alone: it is up sooner, and its 8 items go first
        while not self._is_over():
            self._turn()
        self._dispenser.settle(self._committer.finish())
        self._read_records()
        counts = self._committer.state.counts
        if counts.ok + counts.failed >= self._session.expected:
            self._ending = None  # whatever asked it to stop, there is nothing left to do
        elapsed = time.monotonic() - self._began
        first = None if self._sent_at is None else self._sent_at - self._began
        cpu_s = self._buried_cpu_s + sum(desk.cpu_s for desk in self._desks.values())
        return Outcome(self._ending or Ending(), self._snapshot(), elapsed, first, cpu_s)

    def _turn(self) -> None:
        for event in self._fleet.collect(timeout_s=COLLECT_S):
            if isinstance(event, Replied):
                self._on_reply(self._desks[event.worker], event.reply)
            else:
                self._on_death(self._desks[event.worker], event)
        now = time.monotonic()
        self._dispenser.settle(self._committer.commit(now=now))
        self._pulse.beat(now=now)
        self._check_signals(now)
        self._check_outage(now)
        self._deal(now)
        if now - self._shown_at >= SHOW_S:
            self._read_records()
            self._board.judge(left=self._dispenser.left, dt_s=now - self._shown_at)
            self._shown_at = now
            self._show(self._snapshot())

    # --- workers ---

    def _spawn(self, desk: _Desk) -> None:
        session = self._session
        assert session.endpoint is not None, "a session with work left has looked at its endpoint"
        desk.incarnation += 1
        desk.wants, desk.finished, desk.answered, desk.signs_of_life = CANARIES, 0, 0, 0
        desk.has_news = desk.is_lost = desk.is_idle = False
        self._fleet.spawn(
            WorkerSpec(
                name=desk.name,
                incarnation=desk.incarnation,
                run_name=session.name,
                config=session.config,
                base_url=session.endpoint.base_url,
                model=session.endpoint.model,
                store_url=session.store.url,
                writer=self._committer.writer,
                writer_epoch=self._committer.epoch,
                spec_sha256=session.spec.sha256,
                cap=max_limit(session.config.control),
                needs_key=bool(os.environ.get(session.config.endpoint.api_key_env)) and not session.config.is_simulated,
            )
        )

    def _deal(self, now: float) -> None:
        """Poll each worker that is due, with new work if it wants some and with what was committed of its files."""
        is_last = self._is_draining or self._is_nothing_out()
        for desk in self._desks.values():
            if now - desk.polled_at < POLL_S or not self._fleet.can_poll(desk.name):
                continue
            desk.polled_at = now
            wants, desk.wants = desk.wants, 0
            is_closed = self._is_draining or desk.is_lost
            shards = [] if is_closed else self._dispenser.take(desk.name, wants, workers=len(self._desks))
            desk.has_news = bool(shards)
            drain = (is_last and not shards) or desk.is_lost
            self._fleet.poll(desk.name, Poll(shards, self._committer.acked(desk.process), drain))

    def _is_nothing_out(self) -> bool:
        """Say whether every item is done or in a file, as far as all workers have told."""
        unheard = any(desk.has_news for desk in self._desks.values())
        return self._dispenser.left == 0 and not unheard and self._board.queued + self._board.in_flight == 0

    def _on_reply(self, desk: _Desk, reply: PollReply) -> None:
        now = time.monotonic()
        for other in self._desks.values():
            if other.incarnation == 0 and not self._is_draining:
                self._spawn(other)
        self._board.on_reply(desk.name, reply)
        self._committer.add(desk.process, reply.written)
        self._dispenser.release(reply.released)
        desk.wants, desk.cpu_s = reply.wants, reply.cpu_s
        desk.has_news, desk.is_lost, desk.is_idle = False, desk.is_lost or reply.is_lost, reply.is_drained
        if self._sent_at is None and reply.in_flight + reply.counters.finished > 0:
            self._sent_at = self._success_at = self._alive_at = now
        if reply.counters.finished > desk.finished:
            desk.finished, self._deaths = reply.counters.finished, 0
        if reply.counters.answered > desk.answered:
            desk.answered, self._success_at, self._has_success = reply.counters.answered, now, True
            self._dispenser.open()
        if reply.signs_of_life > desk.signs_of_life:
            desk.signs_of_life, self._alive_at = reply.signs_of_life, now
        if reply.last_failure is not None and reply.last_failure != self._last_failure:
            self._last_failure, self._failed_at = reply.last_failure, now
        if reply.fatal is not None:
            self._end(_ending_of(reply.fatal))
        elif desk.is_lost and desk.is_idle and not self._is_draining:
            self._on_death(desk, Died(desk.name, "its lease ran out"))

    def _on_death(self, desk: _Desk, event: Died) -> None:
        """Free its permits, take in what it had written, give its items to others, start it anew."""
        log.warning("worker=%s died reason=%s", desk.process, event.reason)
        self._fleet.bury(desk.name)
        self._board.on_death(desk.name)
        self._buried_cpu_s, desk.cpu_s = self._buried_cpu_s + desk.cpu_s, 0.0
        self._dispenser.settle(self._committer.commit(now=time.monotonic(), force=True))
        self._dispenser.settle(self._committer.adopt())
        self._dispenser.give_back(desk.name)
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            self._end(Ending(RESUMABLE, f"{self._deaths} worker processes died in a row, the last: {event.reason}"))
        if self._is_draining:
            desk.is_idle = True
        else:
            self._spawn(desk)

    # --- ending ---

    @property
    def _is_draining(self) -> bool:
        return self._drain_until is not None

    def _end(self, ending: Ending) -> None:
        """Stop sending; what is in flight may still come in, and is written."""
        if self._ending is None:
            log.warning("ending exit_code=%d why=%s", ending.exit_code, ending.why)
            self._ending = ending
            self._drain_until = time.monotonic() + DRAIN_S

    def _is_over(self) -> bool:
        counts = self._committer.state.counts
        if self._drain_until is None and counts.ok + counts.failed >= self._session.expected:
            self._drain_until = time.monotonic() + LAST_FILES_S
        if self._drain_until is None:
            return False
        gone = all(desk.is_idle or desk.name not in self._fleet.workers for desk in self._desks.values())
        return gone or time.monotonic() >= self._drain_until

    def _check_signals(self, now: float) -> None:
        if self._signals.received is not None and not self._is_draining:
            self._say(
                f"stopping: {self._board.in_flight} requests in flight are finished and kept; again to stop at once"
            )
            self._end(Ending(self._signals.exit_code, "stopped by a signal; what was answered is saved"))

    def _check_outage(self, now: float) -> None:
        """Give up on an endpoint that answers nothing: soon before the first success, late after it."""
        endpoint = self._session.config.endpoint
        if self._sent_at is None or self._is_draining:
            return
        if not self._has_success and self._is_silent(now, endpoint.first_success_s):
            self._end(Ending(NO_ENDPOINT, f"no answer within {endpoint.first_success_s:g} s: {self._last_words()}"))
        elif now - self._success_at > endpoint.max_outage_s:
            self._end(Ending(RESUMABLE, f"no answer for {now - self._success_at:.0f} s: {self._last_words()}"))

    def _is_silent(self, now: float, patience_s: float) -> bool:
        """Say whether nothing came for so long. Without streams a slow answer is silent: then failures must come."""
        if now - self._alive_at <= patience_s:
            return False
        return self._session.config.endpoint.stream == "all" or now - self._failed_at <= patience_s

    def _last_words(self) -> str:
        failure = self._last_failure
        if failure is None:
            return "the server takes requests and says nothing"
        line = TABLE[failure.kind].line if failure.kind in TABLE else failure.kind
        return line if failure.message in ("", line) else f"{line} ({failure.message})"

    # --- telling ---

    def _read_records(self) -> None:
        records = self._fleet.read_control()
        self._board.on_records(records.limit, records.ticks, records.changes)
        self._recorder.add(records.ticks)

    def _snapshot(self) -> Progress:
        counts = self._committer.state.counts
        return self._board.snapshot(
            elapsed_s=time.monotonic() - self._began,
            expected=self._session.expected,
            ok=counts.ok,
            failed=counts.failed,
            bound_by=self._board.bound_by,
        )


def make_dispenser(session: Session, committer: Committer) -> Dispenser:
    """Build the queue of what the log does not have."""
    counts = committer.state.counts
    return Dispenser(
        session.dataset.order.tolist(),
        repeats=session.config.run.repeats,
        is_done=committer.state.is_done,
        load=session.dataset.example,
        owed=session.expected - counts.ok - counts.failed,
        shard_size=session.config.run.shard_size,
    )


def _ending_of(failure: Failure) -> Ending:
    """Return the exit code and the line for a failure that ends the run."""
    if failure.kind == "config":
        return Ending(2, failure.message)
    row = TABLE.get(failure.kind)
    line = f"{row.line}: {failure.message}" if row and failure.message != row.line else failure.message
    if failure.kind in _OURS or (row is not None and issubclass(row.error, Paused)):
        return Ending(RESUMABLE, line)
    return Ending(NO_KEY if failure.kind in KEY_KINDS else NO_ENDPOINT, line)
