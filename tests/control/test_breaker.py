"""The breaker opens when an endpoint is gone, tries it ever more slowly, and lets the crowd back in steps."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evalpipe.control.breaker import MIN_REQUESTS, OPEN_AFTER, STEPS, Breaker


def fail(breaker: Breaker, times: int, *, now: float = 0.0) -> Breaker:
    for _ in range(times):
        breaker.on_failure(breaker.on_send(), now=now)
    return breaker


def answer(breaker: Breaker, times: int, *, now: float) -> Breaker:
    for _ in range(times):
        breaker.on_answer(breaker.on_send(), now=now)
    return breaker


def test_a_handful_of_failures_is_no_outage():
    """Resets come alone with some servers; sending goes on, and an answer starts the count again."""
    breaker = fail(Breaker(), OPEN_AFTER - 1)

    answer(breaker, 1, now=0.0)
    fail(breaker, OPEN_AFTER - 1)

    assert not breaker.is_open
    assert breaker.can_send(now=0.0)


def test_an_outage_is_probed_one_at_a_time_ever_more_slowly():
    """After the eighth failure in a row: half a second, then 1.6 times as long each, at most 5 s."""
    breaker = fail(Breaker(), OPEN_AFTER)

    assert breaker.is_open
    assert not breaker.can_send(now=0.49)
    assert breaker.can_send(now=0.51)
    probe = breaker.on_send()
    assert not breaker.can_send(now=0.51)
    breaker.on_failure(probe, now=1.0)
    assert not breaker.can_send(now=1.79)
    assert breaker.can_send(now=1.81)
    for _ in range(30):
        fail(breaker, 1, now=10.0)
    assert not breaker.can_send(now=14.9)
    assert breaker.can_send(now=15.1)


def test_the_way_back_is_one_two_four_eight():
    """Each step lets so many go; the next begins when all of them were answered. After the last it is closed."""
    breaker, steps = fail(Breaker(), OPEN_AFTER), []

    while breaker.is_open:
        tickets = []
        while breaker.can_send(now=1.0):
            tickets.append(breaker.on_send())
        steps.append(len(tickets))
        for ticket in tickets:
            breaker.on_answer(ticket, now=1.0)

    assert steps == [1, 2, 4, 8]
    assert all(breaker.can_send(now=1.0) for _ in range(100))


def test_a_failed_probe_of_any_step_opens_it_again():
    """Two of the second step: one answered, one not; it begins again with one, after a wait."""
    breaker = answer(fail(Breaker(), OPEN_AFTER), 1, now=1.0)
    first, second = breaker.on_send(), breaker.on_send()

    breaker.on_answer(first, now=1.0)
    breaker.on_failure(second, now=1.0)

    assert not breaker.can_send(now=1.7)
    assert breaker.can_send(now=1.9)
    breaker.on_send()
    assert not breaker.can_send(now=1.9)


def test_half_of_fifty_opens_it():
    """Failures that alternate with answers are an outage too, once there were enough of them in 20 s."""
    breaker = Breaker()

    for _ in range(MIN_REQUESTS // 2 - 1):
        fail(answer(breaker, 1, now=3.0), 1, now=3.0)
    before = breaker.is_open
    fail(answer(breaker, 1, now=3.0), 1, now=3.0)

    assert (before, breaker.is_open) == (False, True)


@pytest.mark.parametrize(("later", "is_open"), [(19.0, True), (20.0, False)])
def test_the_window_forgets(later: float, is_open: bool):
    """What happened 20 s ago does not make the half."""
    breaker = Breaker()
    for _ in range(24):
        fail(answer(breaker, 1, now=0.5), 1, now=0.5)

    answer(breaker, 2, now=later)
    fail(breaker, 2, now=later)

    assert breaker.is_open is is_open


def test_one_in_five_is_no_outage():
    """A server that fails a fifth of all requests is to be lived with."""
    breaker = Breaker()

    for _ in range(200):
        fail(answer(breaker, 4, now=1.0), 1, now=1.0)

    assert not breaker.is_open


def test_what_left_before_says_nothing_about_now():
    """Answers and failures of requests sent before it opened neither close it nor lengthen the wait."""
    breaker = Breaker()
    old = [breaker.on_send() for _ in range(4)]
    fail(breaker, OPEN_AFTER)

    for ticket in old[:2]:
        breaker.on_answer(ticket, now=0.1)
    for ticket in old[2:]:
        breaker.on_failure(ticket, now=0.4)

    assert breaker.is_open
    assert breaker.can_send(now=0.51)


def test_an_item_that_is_its_own_reason_opens_nothing():
    """The last items of a run, each failing again and again, are no outage; a probe that fails is one all the same."""
    breaker = Breaker()

    for _ in range(50):
        breaker.on_failure(breaker.on_send(), now=0.0, is_evidence=False)
    closed = not breaker.is_open
    fail(breaker, OPEN_AFTER)
    breaker.on_failure(breaker.on_send(), now=1.0, is_evidence=False)

    assert closed
    assert not breaker.can_send(now=1.7)


class Machine(RuleBasedStateMachine):
    """Any order of sends and results leaves it in a possible state from which answers lead back to closed."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker, self.now, self.out = Breaker(), 0.0, []

    @rule(gap_s=st.floats(0.0, 6.0))
    def wait(self, gap_s: float) -> None:
        self.now += gap_s

    @rule()
    def send(self) -> None:
        if self.breaker.can_send(now=self.now):
            self.out.append(self.breaker.on_send())

    @precondition(lambda self: self.out)
    @rule(data=st.data(), is_evidence=st.booleans(), works=st.booleans())
    def end(self, data, is_evidence: bool, works: bool) -> None:
        ticket = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if works:
            self.breaker.on_answer(ticket, now=self.now)
        else:
            self.breaker.on_failure(ticket, now=self.now, is_evidence=is_evidence)

    @invariant()
    def is_possible(self) -> None:
        self.breaker.validate()

    def teardown(self) -> None:
        self.now += 6.0
        for ticket in self.out:
            self.breaker.on_answer(ticket, now=self.now)
        for _ in range(sum(STEPS)):
            assert self.breaker.can_send(now=self.now)
            self.breaker.on_answer(self.breaker.on_send(), now=self.now)
        assert not self.breaker.is_open


TestMachine = Machine.TestCase
