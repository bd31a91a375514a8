"""Leases: one limit, many workers, no permit lent twice and none lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evalpipe.control.lease import LeaseBook, Report, WorkerLease
from evalpipe.control.observation import Observation
from evalpipe.errors import StateError


class Cluster:
    """Workers and a book joined by instant calls; a request is an entry in a worker's in_flight."""

    def __init__(self, limit: int, workers: int) -> None:
        self.book = LeaseBook(limit)
        self.workers = {f"w{i}": WorkerLease() for i in range(workers)}

    def exchange(self, name: str, *, want: int, now: float, incarnation: int = 1) -> None:
        worker = self.workers[name]
        sequence, in_flight, peak, held = worker.ask(want=want, now=now)
        report = Report(name, incarnation, sequence, held, want, Observation(in_flight, peak))
        lease = self.book.exchange(report, now=now)
        self.book.validate()
        worker.renew(lease)

    def send_all(self, name: str, *, now: float) -> int:
        count = 0
        while self.workers[name].take(now=now) is not None:
            count += 1
        return count

    @property
    def in_flight(self) -> int:
        return sum(worker.in_flight for worker in self.workers.values())


def test_one_worker_gets_the_whole_limit():
    """A lone worker with enough work may use every permit at once."""
    cluster = Cluster(limit=48, workers=1)

    cluster.exchange("w0", want=500, now=0.0)

    assert cluster.send_all("w0", now=0.0) == 48


def test_what_a_silent_worker_has_out_stays_charged():
    """After its TTL a cut-off worker sends nothing more; its permits are lent when its requests must be back."""
    book = LeaseBook(10, ttl_s=2.0)
    book.linger_s = 3.0
    book.exchange(Report("a", 1, 1, held=0, want=10), now=0.0)

    at_ttl = book.exchange(Report("b", 1, 1, held=0, want=10), now=2.5)
    after = book.exchange(Report("b", 1, 2, held=0, want=10), now=6.0)

    assert (at_ttl.permits, after.permits) == (0, 10)


def test_a_new_book_lends_no_more_than_is_held_until_all_were_heard():
    """A restarted controller does not know what the others hold: growth waits for the last of them, or a TTL."""
    book = LeaseBook(20, ttl_s=2.0, unheard=[("a", 1), ("b", 1)])

    first = book.exchange(Report("a", 1, 7, held=8, want=50, observation=Observation(6, 6)), now=0.0)
    book.exchange(Report("b", 1, 9, held=5, want=0, observation=Observation(5, 5)), now=0.1)
    second = book.exchange(Report("a", 1, 8, held=8, want=50, observation=Observation(8, 8)), now=0.2)

    assert (first.permits, second.permits) == (8, 15)


def test_a_new_book_does_not_wait_for_the_dead():
    """A worker that died with the old controller is never heard; a TTL later its permits are free."""
    book = LeaseBook(20, ttl_s=2.0, unheard=[("a", 1), ("b", 1)])
    book.exchange(Report("a", 1, 7, held=8, want=50, observation=Observation(6, 6)), now=0.0)

    lease = book.exchange(Report("a", 1, 8, held=8, want=50, observation=Observation(8, 8)), now=2.1)

    assert lease.permits == 20


def test_demand_is_shared_max_min():
    """A worker that wants little gets it all; the others split the rest evenly."""
    cluster = Cluster(limit=20, workers=3)
    wants = {"w0": 2, "w1": 100, "w2": 100}

    for now in (0.0, 0.1, 0.2, 0.3):
        for name, want in wants.items():
            cluster.exchange(name, want=want, now=now)

    assert [cluster.workers[n].lease.permits for n in wants] == [2, 9, 9]


def test_a_cut_cancels_nothing_and_stops_new_sends():
    """After a cut nothing is sent until the requests of the old limit are back."""
    cluster = Cluster(limit=10, workers=2)
    for now in (0.0, 0.1, 0.2):
        for name in ("w0", "w1"):
            cluster.exchange(name, want=50, now=now)
            cluster.send_all(name, now=now)

    cluster.book.set_limit(4, epoch=1)
    for name in ("w0", "w1"):
        cluster.exchange(name, want=50, now=0.3)

    assert cluster.in_flight == 10
    assert cluster.send_all("w0", now=0.3) + cluster.send_all("w1", now=0.3) == 0


def test_a_repeated_exchange_changes_nothing():
    """A lost reply is answered again with the same lease, and is not new."""
    book = LeaseBook(8)
    report = Report("w0", 1, sequence=1, held=0, want=5)

    before = book.is_new(report)
    first = book.exchange(report, now=0.0)
    second = book.exchange(report, now=0.05)

    assert (before, book.is_new(report)) == (True, False)
    assert second == first


def test_a_replaced_process_is_refused():
    """A zombie of an older incarnation gets no lease; what it may still have out stays charged until its TTL."""
    book = LeaseBook(8)
    book.exchange(Report("w0", 1, 7, held=8, want=0, observation=Observation(8)), now=0.0)

    lease = book.exchange(Report("w0", 2, 1, held=0, want=8), now=0.1)
    later = book.exchange(Report("w0", 2, 2, held=0, want=8), now=15.1)

    assert (lease.permits, later.permits) == (0, 8)
    with pytest.raises(StateError, match="incarnation 1"):
        book.exchange(Report("w0", 1, 8, held=8, want=0), now=0.2)


def test_a_new_book_waits_for_a_process_that_was_given_up():
    """Its successor was heard, but it may send on until its own lease runs out, and its requests a while longer."""
    book = LeaseBook(20, ttl_s=2.0, unheard=[("a", 1), ("a", 2)])
    book.linger_s = 1.0
    first = book.exchange(Report("a", 2, 1, held=0, want=50), now=0.0)

    at_ttl = book.exchange(Report("a", 2, 2, held=0, want=50), now=2.9)
    after = book.exchange(Report("a", 2, 3, held=0, want=50), now=3.1)

    assert (first.permits, at_ttl.permits, after.permits) == (0, 0, 20)


def test_the_death_of_a_successor_frees_its_own_permits_only():
    """The process before it was given up, not seen to die: what it may have out stays charged until its TTL."""
    book = LeaseBook(8, ttl_s=5.0)
    book.exchange(Report("w0", 1, 7, held=6, want=6, observation=Observation(0)), now=0.0)
    book.exchange(Report("w0", 2, 1, held=0, want=8), now=0.1)
    book.release(("w0", 2))

    third = book.exchange(Report("w0", 3, 1, held=0, want=8), now=0.2)

    assert third.permits == 2


def test_a_sure_death_frees_at_once():
    """The driver knows that the process is dead: its successor starts with a clean account."""
    book = LeaseBook(8)
    book.exchange(Report("w0", 1, 7, held=8, want=0, observation=Observation(8)), now=0.0)
    book.release(("w0", 1))

    lease = book.exchange(Report("w0", 2, 1, held=0, want=8), now=0.1)

    assert lease.permits == 8


def test_permits_of_a_silent_worker_come_back_after_the_ttl():
    """Until the TTL they stay charged, after it they are lent again."""
    cluster = Cluster(limit=8, workers=2)
    cluster.exchange("w0", want=8, now=0.0)
    cluster.send_all("w0", now=0.0)

    cluster.exchange("w1", want=8, now=14.9)
    during = cluster.workers["w1"].lease.permits
    cluster.exchange("w1", want=8, now=15.1)

    assert during == 0
    assert cluster.workers["w1"].lease.permits == 8


def test_a_worker_without_renewal_stops_at_the_ttl():
    """A cut-off worker sends nothing after 15 s, though it has permits left."""
    cluster = Cluster(limit=8, workers=1)
    cluster.exchange("w0", want=8, now=0.0)

    permit_before, permit_after = cluster.workers["w0"].take(now=15.0), cluster.workers["w0"].take(now=15.01)

    assert permit_before is not None
    assert permit_after is None
    assert cluster.workers["w0"].is_expired(now=15.01)


def test_a_brake_holds_until_an_exchange_begun_after_it():
    """The answer of a call that was already out does not release the brake."""
    book, worker = LeaseBook(8), WorkerLease()
    sequence, in_flight, peak, held = worker.ask(want=8, now=0.0)
    worker.brake()
    worker.renew(book.exchange(Report("w0", 1, sequence, held, 8, Observation(in_flight, peak)), now=0.0))

    braked = worker.take(now=0.0)
    sequence, in_flight, peak, held = worker.ask(want=8, now=0.1)
    worker.renew(book.exchange(Report("w0", 1, sequence, held, 8, Observation(in_flight, peak)), now=0.1))

    assert braked is None
    assert worker.take(now=0.1) is not None


def test_growth_is_released_in_steps():
    """From 10 to 100 takes several quarter seconds, at most 20 % or 8 permits each."""
    cluster = Cluster(limit=10, workers=1)
    cluster.exchange("w0", want=500, now=0.0)
    cluster.book.set_limit(100, epoch=0)

    seen = []
    for step in range(1, 5):
        cluster.exchange("w0", want=500, now=step * 0.25)
        seen.append(cluster.workers["w0"].lease.permits)

    assert seen == [18, 26, 34, 42]


def test_few_permits_rotate_among_many_workers():
    """Limit 2, eight workers with work: within ten seconds each has sent something."""
    cluster = Cluster(limit=2, workers=8)
    sent = dict.fromkeys(cluster.workers, 0)

    for step in range(100):
        for name, worker in cluster.workers.items():
            while worker.in_flight:
                worker.give_back()
            cluster.exchange(name, want=10, now=step * 0.1)
            sent[name] += cluster.send_all(name, now=step * 0.1)
            assert cluster.in_flight <= 2

    assert min(sent.values()) > 0


def test_many_workers_stretch_the_interval():
    """With 256 workers an exchange every 0.7 s keeps the controller at a fifth of a core."""
    cluster = Cluster(limit=256, workers=256)

    for name in cluster.workers:
        cluster.exchange(name, want=4, now=0.0)

    assert cluster.workers["w255"].lease.next_exchange_s == pytest.approx(0.704)


class LeaseMachine(RuleBasedStateMachine):
    """Any order of sends, ends, exchanges (some replies lost), cuts and growth: I4 holds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.cluster = Cluster(limit=6, workers=3)
        self.ceiling = 6  # the largest limit that a request out now may have been sent under

    def _names(self) -> list[str]:
        return list(self.cluster.workers)

    @rule(worker=st.integers(0, 2), want=st.integers(0, 12), lost=st.booleans(), dt=st.floats(0.0, 0.5))
    def exchange(self, worker: int, want: int, lost: bool, dt: float) -> None:
        self.now += dt
        name = self._names()[worker]
        lease = self.cluster.workers[name]
        sequence, in_flight, peak, held = lease.ask(want=want, now=self.now)
        report = Report(name, 1, sequence, held, want, Observation(in_flight, peak))
        before = self.cluster.book.charged
        reply = self.cluster.book.exchange(report, now=self.now)
        self.cluster.book.validate()
        assert self.cluster.book.charged <= max(self.cluster.book.limit, before)
        if not lost:
            lease.renew(reply)

    @rule(worker=st.integers(0, 2))
    def send(self, worker: int) -> None:
        before = self.cluster.in_flight
        if self.cluster.workers[self._names()[worker]].take(now=self.now) is not None:
            assert before < self.ceiling

    @precondition(lambda self: self.cluster.in_flight)
    @rule(worker=st.integers(0, 2))
    def end(self, worker: int) -> None:
        lease = self.cluster.workers[self._names()[worker]]
        if lease.in_flight:
            lease.give_back()

    @rule(limit=st.integers(1, 20))
    def set_limit(self, limit: int) -> None:
        self.cluster.book.set_limit(limit, epoch=0)
        self.ceiling = max(self.ceiling, limit)

    @rule()
    def everyone_exchanges(self) -> None:
        """After each worker has heard the current limit, only that limit (or older requests) may bind."""
        for name in self._names():
            self.cluster.exchange(name, want=6, now=self.now)
        self.ceiling = self.cluster.book.limit

    @invariant()
    def sum_of_permits_fits(self) -> None:
        assert all(worker.in_flight >= 0 for worker in self.cluster.workers.values())


LeaseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeaseMachine = LeaseMachine.TestCase


@given(
    limit=st.integers(1, 64),
    wants=st.lists(st.integers(0, 40), min_size=1, max_size=9),
)
@settings(max_examples=100, deadline=None)
def test_no_permit_is_left_lying(limit: int, wants: list[int]):
    """After a few rounds all permits that anybody wants are lent out, none more than the limit."""
    cluster = Cluster(limit=limit, workers=len(wants))

    for step in range(6):
        for i, want in enumerate(wants):
            cluster.exchange(f"w{i}", want=want, now=step * 0.1)

    lent = sum(worker.lease.permits for worker in cluster.workers.values())
    assert lent == min(limit, sum(wants))
