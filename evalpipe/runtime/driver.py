"""The driver: one loop that deals out work, commits what comes back, and ends the run with the right exit code.

Each turn collects what came in, commits, deals, and shows. All it knows can be rebuilt from the log, so it may die at
any moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from evalpipe.runtime.aside import Aside
from evalpipe.runtime.budget import Budget, spent_before
from evalpipe.runtime.clock import REAL, Clock
from evalpipe.runtime.committer import Committer
from evalpipe.runtime.controller import ControlRecords
from evalpipe.runtime.desk import Desk, worker_spec
from evalpipe.runtime.dispenser import CANARIES, Dispenser
from evalpipe.runtime.endings import BUDGET, NO_ENDPOINT, NO_KEY, RESUMABLE, Ending, EndpointWatch, ending_of
from evalpipe.runtime.messages import Died, Fleet, Poll, PollReply, Recorded, Replied
from evalpipe.runtime.progress import Board, Progress
from evalpipe.runtime.recorder import Recorder
from evalpipe.runtime.session import Session, max_limit
from evalpipe.runtime.signals import StopSignals

log = logging.getLogger(__name__)

POLL_S = 0.2  # with work for a second in hand a worker never runs dry between polls
COLLECT_S = 0.05
SHOW_S = 0.5
DRAIN_S = 45.0  # after a signal: time for requests in flight to end
LOST_DRAIN_S = 20.0  # when the endpoint or the account cannot go on: those few that still end are kept
DEAD_DRAIN_S = 3.0  # when nothing was ever answered: nothing will be
LAST_FILES_S = 10.0  # after the last result: time for the workers' files of attempts
MAX_DEATHS = 20  # worker processes that died without a result in between: something kills every one
SUSPENDED_S = 5.0  # a turn that took so long was no turn: the process was stopped, and heard nothing


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
        clock: Clock = REAL,
    ) -> None:
        self._session, self._fleet, self._committer, self._recorder = session, fleet, committer, recorder
        self._pulse, self._signals, self._show, self._say, self._clock = pulse, signals, show, say, clock
        self._desks = {name: Desk(name) for name in (f"w{number}" for number in range(workers))}
        self._board = Board(max_limit=max_limit(session.config.control))
        agenda = session.agenda(committer.state)
        self._dispenser = Dispenser(
            agenda,
            is_done=committer.state.is_done,
            load=session.dataset.example,
            shard_size=session.config.run.shard_size,
        )
        self._expected, self._counts = session.scope(committer.state, agenda)
        self._aside = Aside(session, committer)
        self._deaths = 0
        self._ending: Ending | None = None
        self._drain_until: float | None = None
        self._began = self._shown_at = self._turned_at = clock.now()
        self._budget = Budget(
            session.config, before=spent_before(session.config, session.store, committer.state), now=self._began
        )
        self._watch = EndpointWatch(session.config.endpoint, now=self._began, is_first_try=session.retry is None)
        self._trouble = ""  # why storage refuses to write, as last told
        self._buried_cpu_s = 0.0

    def run(self) -> Outcome:
        """Work until all is in the log, a signal drained the run, or nothing can succeed.

        Raises Fenced when another driver took the run, Resumable when controllers die in a row, OSError when storage
        is gone.
        """
        self.begin()
        while not self.is_over:
            self.turn()
        return self.finish()

    def begin(self) -> None:
        self._spawn(next(iter(self._desks.values())))  # the first alone: it is up sooner, and its 8 items go first

    def turn(self) -> None:
        """Collect, commit, deal, show: once around."""
        for event in self._fleet.collect(timeout_s=COLLECT_S):
            self._on_event(event)
        now = self._clock.now()
        if now - self._turned_at > SUSPENDED_S:
            self._watch.forgive(now - self._turned_at)
        self._turned_at = now
        self._dispenser.settle(self._committer.commit(now=now))
        self._pulse.beat(now=now)
        self._tell_trouble()
        self._check_signals()
        ending = self._watch.verdict(now=now) or self._budget.verdict(now=now)
        if ending is not None and not self._is_draining:
            self._end(ending)
        self._deal(now)
        if now - self._shown_at >= SHOW_S:
            self._fleet.ask_control()
            self._board.judge(left=self._dispenser.left, dt_s=now - self._shown_at)
            self._shown_at = now
            self._show(self._snapshot())

    @property
    def is_over(self) -> bool:
        now = self._clock.now()
        if self._drain_until is None and self._dispenser.is_done:
            self._drain_until = now + LAST_FILES_S
        if self._drain_until is None:
            return False
        return all(map(self._has_nothing_left, self._desks.values())) or now >= self._drain_until

    def _has_nothing_left(self, desk: Desk) -> bool:
        """Say whether a worker has written all: it said so, is gone, or never came up and was given nothing."""
        is_waiting = not desk.is_up and not desk.has_news
        return desk.is_idle or is_waiting or desk.name not in self._fleet.workers

    def finish(self) -> Outcome:
        """Commit the last files and sum up."""
        self._dispenser.settle(self._committer.finish())
        if self._dispenser.is_done:
            self._ending = None  # whatever asked it to stop, there is nothing left to do
        elapsed = self._clock.now() - self._began
        sent_at = self._watch.sent_at
        first = None if sent_at is None else sent_at - self._began
        cpu_s = self._buried_cpu_s + sum(desk.cpu_s for desk in self._desks.values())
        return Outcome(self._ending or Ending(), self._snapshot(), elapsed, first, cpu_s)

    # --- workers ---

    def _spawn(self, desk: Desk) -> None:
        # only the very first get work before they are up: a replacement may wait for a core until the end of the run
        desk.begin_process(wants=0 if self._watch.has_success else CANARIES)
        self._fleet.spawn(worker_spec(desk, self._session, self._committer, workers=len(self._desks)))

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

    def _on_event(self, event: Replied | Died | Recorded) -> None:
        if isinstance(event, Recorded):
            self._on_records(event.records)
        elif isinstance(event, Replied):
            self._on_reply(self._desks[event.worker], event.reply)
        else:
            self._on_death(self._desks[event.worker], event)

    def _on_reply(self, desk: Desk, reply: PollReply) -> None:
        for other in self._desks.values():
            if other.incarnation == 0 and not self._is_draining:
                self._spawn(other)
        self._board.on_reply(desk.name, reply)
        self._watch.on_reply(desk.process, reply, now=self._clock.now())
        self._budget.on_reply(desk.process, reply.counters)
        self._committer.add(desk.process, reply.written)
        self._dispenser.release(reply.released, worker=desk.name)
        desk.wants, desk.cpu_s, desk.storage = reply.wants, reply.cpu_s, reply.storage
        desk.has_news, desk.is_up = False, True
        desk.is_lost, desk.is_idle = desk.is_lost or reply.is_lost, reply.is_drained
        if reply.counters.finished > desk.finished:
            desk.finished, self._deaths = reply.counters.finished, 0
        if self._watch.is_open:
            self._dispenser.open()
        if reply.fatal is not None:
            self._end(ending_of(reply.fatal))
        elif desk.is_lost and desk.is_idle and not self._is_draining:
            self._replace(desk, Died(desk.name, "its lease ran out"), is_suspect=False)

    def _on_death(self, desk: Desk, event: Died) -> None:
        """Take in what it had written, give its items to others but for one that kills its workers, start it anew."""
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            self._end(Ending(RESUMABLE, f"{self._deaths} worker processes died in a row, the last: {event.reason}"))
        self._replace(desk, event, is_suspect=True)

    def _replace(self, desk: Desk, event: Died, *, is_suspect: bool) -> None:
        """is_suspect: what it had may have killed it."""
        log.warning("worker=%s gone reason=%s", desk.process, event.reason)
        self._fleet.bury(desk.name, is_sure=event.is_sure)
        self._board.on_death(desk.name)
        self._buried_cpu_s, desk.cpu_s = self._buried_cpu_s + desk.cpu_s, 0.0
        self._dispenser.settle(self._committer.commit(now=self._clock.now(), force=True))
        self._dispenser.settle(self._committer.adopt())
        guilty = self._dispenser.take_back(desk.name, is_suspect=is_suspect)
        self._aside.put([self._dispenser.item(key) for key in guilty], reason=event.reason)
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
            self._drain_until = self._clock.now() + self._drain_s(ending)

    def _drain_s(self, ending: Ending) -> float:
        if ending.exit_code not in (NO_KEY, NO_ENDPOINT):
            return DRAIN_S
        return LOST_DRAIN_S if self._watch.has_success else DEAD_DRAIN_S

    def _check_signals(self) -> None:
        if self._signals.received is not None and not self._is_draining:
            self._say(
                f"stopping: {self._board.in_flight} requests in flight are finished and kept; again to stop at once"
            )
            self._end(Ending(self._signals.exit_code, "stopped by a signal; what was answered is saved"))

    # --- telling ---

    def _on_records(self, records: ControlRecords) -> None:
        self._board.on_records(records.limit, records.ticks, records.changes)
        for timed in records.changes:
            if timed.change.reason == "quota":
                log.info("quota at=%.1f %s", timed.at, timed.change.evidence.state)
        self._recorder.add(records.ticks, records.changes)

    def _tell_trouble(self) -> None:
        trouble = self._committer.trouble or next((desk.storage for desk in self._desks.values() if desk.storage), "")
        if trouble and not self._trouble:
            self._say(f"storage: {trouble}; nothing is sent until it works again")
        elif self._trouble and not trouble:
            self._say("storage works again")
        self._trouble = trouble

    @property
    def _bound_by(self) -> str:
        is_spent = self._ending is not None and self._ending.exit_code == BUDGET
        return "budget" if is_spent else self._board.bound_by

    def _snapshot(self) -> Progress:
        counts = self._committer.state.counts
        return self._board.snapshot(
            elapsed_s=self._clock.now() - self._began,
            expected=self._expected,
            ok=counts.ok - self._counts.ok,
            failed=counts.failed - self._counts.failed,
            bound_by=self._bound_by,
        )
