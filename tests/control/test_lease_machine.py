"""The lease protocol on a bad network: calls lost, late, doubled, out of order; workers and controllers that restart.

What is judged is what a server sees: requests out, whoever sent them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evalpipe.control.lease import LeaseBook, Report, WorkerLease
from evalpipe.control.observation import Observation
from evalpipe.errors import StateError

TTL_S = 15.0
LONGEST_S = 4.0  # no request is out for longer
NAMES = ("w0", "w1", "w2")
FATE = st.sampled_from(["answered", "answered", "answered", "answer lost", "call lost"])


@dataclass(eq=False)
class Process:
    """One worker process. call: the report it has sent and had no answer to. sent_at: of its requests that are out.

    is_deaf: the driver gave it up and started another one under its name; it lives on until its lease runs out.
    """

    name: str
    incarnation: int
    lease: WorkerLease = field(default_factory=WorkerLease)
    call: Report | None = None
    sent_at: list[float] = field(default_factory=list)
    is_lost: bool = False
    is_deaf: bool = False


class LeaseMachine(RuleBasedStateMachine):
    """bound: what the requests out may come to. A larger limit raises it, a smaller one lowers it once all have heard.

    Invariant: nobody could pass the bound, even if all of them sent at one moment all that they may.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.limit = self.bound = 6
        self.incarnations: Iterator[int] = itertools.count(1)
        self.processes = [Process(name, next(self.incarnations)) for name in NAMES]
        self.old_calls: list[Report] = []
        self.is_restarted = False
        self.book = self.new_book()

    def new_book(self) -> LeaseBook:
        book = LeaseBook(
            self.limit, ttl_s=TTL_S, unheard=[(process.name, process.incarnation) for process in self.processes]
        )
        book.linger_s = LONGEST_S
        return book

    # --- time and requests ---

    @rule(seconds=st.floats(0.0, 1.0))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(seconds=st.floats(5.0, 16.0))
    def wait_long(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(worker=st.integers(0, 5), most=st.integers(1, 12))
    def send(self, worker: int, most: int) -> None:
        self.send_up_to(self.process(worker), most)

    @rule(worker=st.integers(0, 5), most=st.integers(1, 8))
    def end(self, worker: int, most: int) -> None:
        process = self.process(worker)
        for _ in range(min(most, len(process.sent_at))):
            process.sent_at.pop()
            process.lease.give_back()

    @rule(worker=st.integers(0, 5))
    def brake(self, worker: int) -> None:
        self.process(worker).lease.brake()

    # --- calls ---

    @rule(worker=st.integers(0, 5), want=st.integers(0, 12), fate=FATE)
    def exchange(self, worker: int, want: int, fate: str) -> None:
        """Begin a call, or say the one again that got no answer; it may be lost on the way there or back."""
        process = self.process(worker)
        if process.call is None:
            process.call = self.ask(process, want)
        if fate == "call lost":
            return
        lease = self.answer(process.call)
        if lease is None:
            process.is_lost = True
        elif fate == "answered":
            process.lease.renew(lease)
            process.call = None

    @precondition(lambda self: self.old_calls)
    @rule(data=st.data())
    def double(self, data: st.DataObject) -> None:
        """A copy of a call arrives late, after newer ones; nobody waits for its answer."""
        self.answer(data.draw(st.sampled_from(self.old_calls[-8:])))

    # --- the limit ---

    @rule(limit=st.integers(1, 20))
    def set_limit(self, limit: int) -> None:
        self.limit = limit
        self.book.set_limit(limit, epoch=0)
        self.bound = max(self.bound, limit)

    @rule(limit=st.integers(1, 6))
    def cut(self, limit: int) -> None:
        """A small limit that everybody hears."""
        self.set_limit(limit)
        self.all_hear()

    @rule(limit=st.integers(1, 3), worker=st.integers(0, 5))
    def dip(self, limit: int, worker: int) -> None:
        """The limit falls and rises again; of that, one worker's answer is lost: it goes on as it did."""
        before = self.limit
        self.set_limit(limit)
        self.exchange(worker=worker, want=12, fate="answer lost")
        self.set_limit(before)
        self.pass_time(1.5)

    @rule()
    def all_hear(self) -> None:
        """Who still may send has heard the limit; from now on no request is sent that finds so many out.

        A new controller needs a second round: in the first it does not know yet what those have out that it hears last.
        """
        for _ in range(1 + self.is_restarted):
            for process in self.processes:
                if not self.has_stopped(process):
                    self.settle(process, want=12)
        self.bound, self.is_restarted = self.limit, False

    # --- deaths ---

    @rule(worker=st.integers(0, 5), is_told=st.booleans())
    def kill(self, worker: int, is_told: bool) -> None:
        """A process dies and another takes its name. is_told: the controller hears of the death first."""
        process = self.process(worker)
        if process.is_deaf:
            return
        self.processes.remove(process)
        if is_told:
            self.book.release((process.name, process.incarnation))
        self.spawn(process.name)

    @rule(worker=st.integers(0, 5))
    def give_up(self, worker: int) -> None:
        """The driver hears nothing from a process that lives, and starts another one beside it."""
        process = self.process(worker)
        if len(self.processes) < 6 and not process.is_deaf:
            process.is_deaf = True
            self.spawn(process.name)

    @rule(worker=st.integers(0, 5))
    def lose_the_successor(self, worker: int) -> None:
        """The driver gives a process up, and the one that took its name is seen to die at its first breath."""
        before = self.process(worker)
        if len(self.processes) < 6 and not before.is_deaf:
            self.give_up(worker)
            self.settle(self.processes[-1], want=12)
            self.kill(len(self.processes) - 1, is_told=True)

    @rule(limit=st.integers(1, 12))
    def restart_controller(self, limit: int) -> None:
        """A new book knows who may have requests out, not how many. Calls to the one before it are made again."""
        self.limit, self.is_restarted = limit, True
        self.bound = max(self.bound, limit)
        self.old_calls.clear()
        self.book = self.new_book()

    @rule()
    def nothing_leaks(self) -> None:
        """Whatever happened: when all is quiet for a while, the whole limit is lent to those who want it.

        Of fewer permits than workers one may be on its way from one to the next: the best of the last rounds counts.
        """
        lent = []
        for seconds in [1.0] * 25 + [0.1] * 10:
            self.pass_time(seconds)
            living = [p for p in self.processes if not (p.is_deaf or self.has_stopped(p))]
            for process in living:
                self.settle(process, want=12)
            lent.append(sum(process.lease.lease.permits for process in living))

        assert max(lent[-10:]) == min(self.limit, 12 * len(NAMES))

    # --- what must hold ---

    @invariant()
    def the_book_is_possible(self) -> None:
        self.book.validate()

    @invariant()
    def nobody_could_pass_the_bound(self) -> None:
        """Even if all of them sent at this moment all that they may."""
        room = sum(self.may_send(process) for process in self.processes)
        assert room == 0 or self.out + room <= self.bound

    # --- how ---

    @property
    def out(self) -> int:
        return sum(len(process.sent_at) for process in self.processes)

    def process(self, number: int) -> Process:
        return self.processes[number % len(self.processes)]

    def spawn(self, name: str) -> None:
        self.processes.append(Process(name, next(self.incarnations)))

    def has_stopped(self, process: Process) -> bool:
        process.is_lost = process.is_lost or process.lease.is_expired(now=self.now)
        return process.is_lost

    def may_send(self, process: Process) -> int:
        """How many requests it would send at once: tried on its purse, and taken back."""
        if self.has_stopped(process):
            return 0
        count = 0
        while process.lease.take(now=self.now) is not None:
            count += 1
        for _ in range(count):
            process.lease.give_back()
        return count

    def send_up_to(self, process: Process, most: int) -> None:
        for _ in range(0 if self.has_stopped(process) else most):
            before = self.out
            if process.lease.take(now=self.now) is None:
                return
            assert before < self.bound
            process.sent_at.append(self.now)

    def pass_time(self, seconds: float) -> None:
        """Requests end in time; a worker that lost its lease ends when it has none out."""
        self.now += seconds
        for process in list(self.processes):
            late = [at for at in process.sent_at if self.now - at >= LONGEST_S]
            for at in late:
                process.sent_at.remove(at)
                process.lease.give_back()
            if self.has_stopped(process) and not process.sent_at:
                self.processes.remove(process)
                if not process.is_deaf:
                    self.spawn(process.name)

    def ask(self, process: Process, want: int) -> Report:
        want = 0 if self.has_stopped(process) else want
        sequence, in_flight, peak, held = process.lease.ask(want=want, now=self.now)
        report = Report(process.name, process.incarnation, sequence, held, want, Observation(in_flight, peak))
        self.old_calls.append(report)
        return report

    def answer(self, report: Report):
        """None where the controller refuses: a newer process has the name."""
        try:
            return self.book.exchange(report, now=self.now)
        except StateError:
            return None

    def settle(self, process: Process, *, want: int) -> None:
        """An exchange without trouble, after the one that is still open."""
        for _ in range(1 + (process.call is not None)):
            call = process.call or self.ask(process, want)
            process.call = None
            lease = self.answer(call)
            if lease is None:
                process.is_lost = True
                return
            process.lease.renew(lease)


class TestLeaseMachine(LeaseMachine.TestCase):
    settings = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.chaos
@pytest.mark.timeout(900)
class TestLeaseMachineAtLength(LeaseMachine.TestCase):
    settings = settings(max_examples=1_500, stateful_step_count=60, deadline=None, derandomize=True)
