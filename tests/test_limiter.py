"""Limiter: a fake clock, events and turns of the loop; no sleeps."""

import asyncio
import random
from dataclasses import dataclass

import pytest

from evalpipe.control.build import build_law
from evalpipe.control.law import LimitChange
from evalpipe.control.observation import Outcome
from evalpipe.errors import Failure, Paused
from evalpipe.limiter import Limiter


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@dataclass
class State:
    limit: float
    epoch: int = 0


class ScriptedLaw:
    """Moves to the next number of the script at each decision; remembers what it was told."""

    def __init__(self, *limits):
        self.state = State(limits[0])
        self.script = list(limits[1:])
        self.seen = []

    def observe(self, observation):
        self.seen.append(observation)

    def decide(self, *, now):
        if not self.script:
            return None
        old, self.state.limit = self.state.limit, self.script.pop(0)
        return LimitChange(old, self.state.limit, "manual")

    @property
    def samples(self):
        return [sample for observation in self.seen for sample in observation.samples]


async def turns(count=5):
    """Let every task that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def hold(limiter, gate, log, name):
    async with limiter.permit():
        log.append(name)
        await gate.wait()


def test_permits_go_first_come_first_served_up_to_the_floor():
    """A limit of 2.9 lets two in; the others follow in their order, one for each that ends."""

    async def scenario():
        limiter, log = Limiter(ScriptedLaw(2.9)), []
        gates = [asyncio.Event() for _ in range(4)]
        tasks = [asyncio.create_task(hold(limiter, gate, log, n)) for n, gate in enumerate(gates)]
        await turns()
        first = list(log)
        gates[1].set()
        await turns()
        second = list(log)
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks)
        return first, second, log, limiter.in_flight

    assert asyncio.run(scenario()) == ([0, 1], [0, 1, 2], [0, 1, 2, 3], 0)


def test_waiting_for_a_permit_is_not_latency():
    """5 s in the queue, 2 s on the wire: rtt is 2 s."""

    async def scenario():
        clock, law = FakeClock(), ScriptedLaw(1)
        limiter, gate, log = Limiter(law, clock=clock), asyncio.Event(), []
        done = limiter.try_acquire()
        task = asyncio.create_task(hold(limiter, gate, log, "second"))
        await turns()
        clock.now += 5.0
        done()
        await turns()
        clock.now += 2.0
        gate.set()
        await task
        return [sample.rtt_s for sample in law.samples]

    assert asyncio.run(scenario()) == [5.0, 2.0]


def test_the_law_is_told_what_the_caller_said():
    """Tokens, Retry-After, epoch, limit and in flight reach the sample; the last word counts."""

    async def scenario():
        law = ScriptedLaw(4)
        law.state.epoch = 7
        limiter = Limiter(law)
        async with limiter.permit(), limiter.permit() as permit:
            permit.ignore()
            permit.ok(prompt_tokens=30, output_tokens=20, ttft_s=0.1)
        async with limiter.permit() as permit:
            permit.drop(retry_after_s=3.0)
        return law

    law = asyncio.run(scenario())
    inner, outer, dropped = law.samples

    assert (inner.outcome, inner.prompt_tokens, inner.output_tokens, inner.ttft_s) == (Outcome.OK, 30, 20, 0.1)
    assert (inner.epoch, inner.limit, inner.in_flight_at_send) == (7, 4, 2)
    assert (outer.outcome, outer.in_flight_at_send) == (Outcome.OK, 1)
    assert (dropped.outcome, dropped.retry_after_s, dropped.kind) == (Outcome.DROPPED, 3.0, "rate_limited")
    assert [(seen.in_flight, seen.in_flight_peak) for seen in law.seen] == [(1, 2), (0, 1), (0, 1)]


class StatusError(Exception):
    def __init__(self, status_code):
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "outcome", "kind"),
    [
        (ValueError("no"), Outcome.IGNORED, "ignored"),
        (StatusError(500), Outcome.IGNORED, "ignored"),
        (StatusError(429), Outcome.DROPPED, "rate_limited"),
        (StatusError(503), Outcome.DROPPED, "rate_limited"),
        (Paused(Failure("overloaded", retry_after_s=9.0)), Outcome.DROPPED, "overloaded"),
    ],
)
def test_an_exception_passes_on_and_gives_the_permit_back(error, outcome, kind):
    """It teaches overload only where it names one."""

    async def fail():
        raise error

    law = ScriptedLaw(1)
    limiter = Limiter(law)
    with pytest.raises(type(error)):
        asyncio.run(limiter.run(fail))

    assert limiter.in_flight == 0
    assert [(sample.outcome, sample.kind) for sample in law.samples] == [(outcome, kind)]


def test_what_was_said_before_an_exception_stands():
    """A caller that saw the 429 and raises its own error has already told."""

    async def scenario(limiter):
        async with limiter.permit() as permit:
            permit.drop(retry_after_s=1.0)
            raise KeyError

    law = ScriptedLaw(1)
    with pytest.raises(KeyError):
        asyncio.run(scenario(Limiter(law)))

    assert law.samples[0].outcome is Outcome.DROPPED


def test_run_hands_arguments_and_result_through():
    """Positional and keyword arguments go to the function, its result comes back."""

    async def add(a, *, b):
        return a + b

    assert asyncio.run(Limiter(ScriptedLaw(1)).run(add, 2, b=3)) == 5


def test_try_acquire_sheds_instead_of_waiting():
    """None when the limit is spent; giving back twice frees one permit, not two."""
    limiter = Limiter(ScriptedLaw(1))

    done = limiter.try_acquire()
    shed = limiter.try_acquire()
    done()
    done()
    again = limiter.try_acquire()

    assert shed is None
    assert again is not None
    assert limiter.in_flight == 1


def test_bbr_in_backoff_sheds_new_sends():
    """Latency far above the minimum drops the limit at once, and what is out already is above it."""
    clock = FakeClock()
    limiter = Limiter(build_law("bbr-published"), clock=clock)

    for _ in range(5):
        done = limiter.try_acquire()
        clock.now += 0.1
        done()
    slow = [limiter.try_acquire() for _ in range(20)]
    clock.now += 1.8
    for done in slow[:10]:
        done()

    assert limiter.law.state.mode == "backoff"
    assert limiter.limit == 5
    assert limiter.in_flight == 10
    assert limiter.try_acquire() is None


def test_a_smaller_limit_takes_no_permit_away():
    """Cut from 4 to 1: three still run and end well, nobody new comes in until they have."""

    async def scenario():
        limiter, gate, log = Limiter(ScriptedLaw(4, 1)), asyncio.Event(), []
        done = limiter.try_acquire()
        tasks = [asyncio.create_task(hold(limiter, gate, log, n)) for n in range(5)]
        await turns()
        done()
        await turns()
        out = limiter.in_flight, limiter.limit, list(log)
        gate.set()
        await asyncio.gather(*tasks)
        return out, log, limiter

    out, log, limiter = asyncio.run(scenario())

    assert out == (3, 1, [0, 1, 2])
    assert log == [0, 1, 2, 3, 4]
    assert [(change.old, change.new) for change in limiter.changes] == [(4, 1)]


def test_a_larger_limit_lets_all_that_fit_in():
    """One end that raises the limit from 1 to 3 wakes three, not one."""

    async def scenario():
        limiter, gate, log = Limiter(ScriptedLaw(1, 3)), asyncio.Event(), []
        done = limiter.try_acquire()
        tasks = [asyncio.create_task(hold(limiter, gate, log, n)) for n in range(4)]
        await turns()
        done()
        await turns()
        woken = list(log)
        gate.set()
        await asyncio.gather(*tasks)
        return woken

    assert asyncio.run(scenario()) == [0, 1, 2]


@pytest.mark.parametrize("granted_first", [False, True])
def test_a_cancelled_waiter_leaves_no_permit_behind(granted_first):
    """Also when its permit was granted in the very turn in which it was cancelled; the next in line gets it."""

    async def scenario():
        limiter, gate, log = Limiter(ScriptedLaw(1)), asyncio.Event(), []
        done = limiter.try_acquire()
        first, second = [asyncio.create_task(hold(limiter, gate, log, n)) for n in range(2)]
        await turns()
        for step in (done, first.cancel) if granted_first else (first.cancel, done):
            step()
        await turns()
        gate.set()
        await asyncio.gather(first, second, return_exceptions=True)
        return first.cancelled(), log, limiter.in_flight

    assert asyncio.run(scenario()) == (True, [1], 0)


def test_nobody_overtakes_a_waiter():
    """Between the cancellation of the first in line and its removal, try_acquire sees the second."""

    async def scenario():
        limiter, gate, log = Limiter(ScriptedLaw(1)), asyncio.Event(), []
        done = limiter.try_acquire()
        first, second = [asyncio.create_task(hold(limiter, gate, log, n)) for n in range(2)]
        await turns()
        done()  # granted to the first ..
        first.cancel()  # .. which will hand it on
        overtaking = limiter.try_acquire()
        await turns()
        gate.set()
        await asyncio.gather(first, second, return_exceptions=True)
        return overtaking, log

    assert asyncio.run(scenario()) == (None, [1])


@pytest.mark.parametrize("seed", range(5))
def test_permits_never_exceed_the_limit_at_grant(seed):
    """300 tasks, a limit that jumps about, a third of them cancelled: no grant above the floor, none lost."""
    rng = random.Random(seed)
    law = ScriptedLaw(3, *[rng.uniform(1.0, 12.0) for _ in range(200)])
    limiter, grants = Limiter(law), []

    async def work():
        async with limiter.permit() as permit:
            grants.append((permit.in_flight_at_send, permit.limit))
            await turns(rng.randrange(4))

    async def scenario():
        tasks = []
        for _ in range(300):
            tasks.append(asyncio.create_task(work()))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            await turns(rng.randrange(2))
        await asyncio.gather(*tasks, return_exceptions=True)
        return sum(not task.cancelled() for task in tasks)

    finished = asyncio.run(scenario())

    assert finished >= 150
    assert len(grants) >= finished
    assert all(in_flight <= limit for in_flight, limit in grants)
    assert limiter.in_flight == 0
