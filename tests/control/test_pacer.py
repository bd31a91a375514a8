"""The pacer lends credits: one rate for all workers, paid when they are used, never more than a quota allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from evalpipe.control.lease import Report
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.pacer import Pacer
from evalpipe.control.quota import Meter, Quota, Told


@dataclass
class Worker:
    """A worker that begins what it may: at once, or a share of it, or nothing."""

    pacer: Pacer
    name: str
    sent: int = 0
    in_flight: int = 0
    may: int | None = 0
    sequence: int = 0
    sent_at: list[float] = field(default_factory=list)

    def exchange(self, now: float, *, want: int = 100, permits: int = 100) -> int | None:
        """Give back what is left, tell what began, take what is lent."""
        self.sequence += 1
        seen = Observation(in_flight=self.in_flight)
        report = Report(self.name, 1, self.sequence, 0, want, seen, sent=self.sent)
        self.pacer.hear(report, now=now)
        self.may = self.pacer.lend(report, permits=permits, now=now)
        return self.may

    def send(self, count: int, now: float) -> None:
        self.sent += count
        self.may = None if self.may is None else self.may - count
        self.sent_at += [now] * count


def most_in(span_s: float, instants: Sequence[float]) -> int:
    """Return the most instants that lie within any span of that length."""
    ordered = sorted(instants)
    return max(
        (sum(1 for at in itertools.islice(ordered, i, None) if at <= ordered[i] + span_s) for i in range(len(ordered))),
        default=0,
    )


def test_nothing_is_bound_without_a_quota():
    """No credits are counted where nobody declared, told or refused anything."""
    assert Worker(Pacer(), "w0").exchange(0.0) is None


def test_one_rate_for_all_workers():
    """600 a minute over four workers that always want more: 9.75 a second go, shared evenly."""
    pacer = Pacer(Quota(rpm=600))
    workers = [Worker(pacer, f"w{i}") for i in range(4)]
    for step in range(400):
        for index, worker in enumerate(workers):
            now = step / 10 + index / 40
            worker.send(worker.exchange(now) or 0, now)

    counts = [worker.sent for worker in workers]
    assert sum(counts) == pytest.approx(40 * 0.975 * 10, abs=12)
    assert max(counts) - min(counts) <= 0.1 * sum(counts)


def test_what_a_worker_does_not_use_goes_to_another():
    """Credits come back with the next report: an idle worker keeps none."""
    pacer = Pacer(Quota(rpm=600))
    idle, busy = Worker(pacer, "idle"), Worker(pacer, "busy")
    for step in range(100):
        idle.exchange(step / 10, want=5)
        busy.send(busy.exchange(step / 10 + 0.05) or 0, step / 10 + 0.05)

    assert busy.sent == pytest.approx(10 * 0.975 * 10, abs=12)


def test_a_lost_worker_took_its_credits_with_it():
    """It may have used them: they are paid, and the others wait."""
    pacer = Pacer(Quota(rpm=600))
    lost, other = Worker(pacer, "lost"), Worker(pacer, "other")
    lost.exchange(0.0), other.exchange(0.0, want=0)
    lent = lost.exchange(1.0)
    pacer.forget("lost")

    assert (lent, other.exchange(1.0)) == (9, 0)


def test_a_share_leaves_the_rest_to_others():
    """Half of 600 a minute."""
    assert Pacer(Quota(rpm=600, share=0.5)).rate == pytest.approx(0.975 * 5)


def test_tokens_pace_by_what_requests_take():
    """60,000 tokens a minute, 500 a request: about 1.9 requests a second."""
    pacer = Pacer(Quota(tpm=60_000))
    pacer.on_answers([Sample(Outcome.OK, 1.0, prompt_tokens=300, output_tokens=200)] * 50)

    assert pacer.rate == pytest.approx(0.955 * 1000 / 500)


def test_a_told_quota_cannot_lift_a_declared_one():
    """A header that promises a million a minute changes nothing."""
    pacer = Pacer(Quota(rpm=60))
    for now in range(10):
        pacer.on_told([Told(requests=Meter(1e6, 5e5 - now, 1.0))], now=float(now))
        pacer.advance(interval_s=0.1, now=float(now))

    assert pacer.rate == pytest.approx(0.975)


def test_a_refusal_shuts_the_door_for_all_but_one_probe():
    """Ten workers, one refusal for a quota: a second later one request goes, at one worker."""
    pacer = Pacer(Quota(rpm=6000))
    workers = [Worker(pacer, f"w{i}") for i in range(10)]
    for worker in workers:
        worker.exchange(0.0)
    pacer.close(advice_s=None, now=0.0)

    early = [worker.exchange(0.5) for worker in workers]
    late = [worker.exchange(1.1) for worker in workers]

    assert (sum(early), sum(late)) == (0, 1)


def test_a_probe_that_is_not_used_goes_to_another():
    """The worker had nothing to send after all: the next one may."""
    pacer = Pacer(Quota(rpm=6000))
    one, two = Worker(pacer, "w0"), Worker(pacer, "w1")
    one.exchange(0.0), two.exchange(0.0)
    pacer.close(advice_s=None, now=0.0)

    lent = [one.exchange(1.1), two.exchange(1.1), one.exchange(1.2, want=0), two.exchange(1.2)]

    assert lent == [1, 0, 0, 1]


def test_a_report_that_comes_again_gets_the_same_credits():
    """A repeated call must not lend twice."""
    pacer = Pacer(Quota(rpm=600))
    worker = Worker(pacer, "w0")
    worker.exchange(0.0)

    assert worker.exchange(0.5) == pacer.lent("w0") == 5


def test_it_says_by_whose_word_it_paces():
    """Declared, told or learned: the lowest one is named."""
    declared, told, learned = Pacer(Quota(rpm=60)), Pacer(), Pacer()
    for now in (0.0, 2.0):
        told.on_told([Told(requests=Meter(60, 0, 12.0))], now=now)
        told.advance(interval_s=0.1, now=now)
    learned.learned.rate = 2.0
    learned.advance(interval_s=0.1, now=0.0)

    assert declared.describe() == "paced at 58 requests/min, as declared"
    assert told.describe() == "paced at 291 requests/min, as told"
    assert learned.describe() == "paced at 120 requests/min, as learned"


def test_a_pace_that_was_learned_before_holds_from_the_start():
    """A controller that replaces another one goes on at its rate, and corrects it by the next refusal."""
    pacer = Pacer(pace=5.0)
    pacer.advance(interval_s=0.1, now=0.0)
    worker = Worker(pacer, "w0")
    lent = [worker.exchange(now) for now in (0.0, 0.5)]

    assert (pacer.rate, lent) == (5.0, [0, 2])


MOVES = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0.01, 20), st.integers(0, 40), st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=80,
)


@settings(deadline=None)
@given(rpm=st.floats(1, 3000), moves=MOVES)
def test_no_minute_sees_more_than_was_declared(rpm: float, moves: list[tuple[int, float, int, float, bool]]):
    """However workers come, want, use their credits late or die, and whatever headers say: a minute has its quota.

    Within any span at most rate * seconds + a second's burst are sent, which for a minute is below the quota.
    """
    pacer = Pacer(Quota(rpm=rpm))
    workers = [Worker(pacer, f"w{i}") for i in range(4)]
    now = 0.0
    for index, seconds, want, used, is_odd in moves:
        worker = workers[index]
        now += seconds
        if is_odd:
            pacer.on_told([Told(requests=Meter(want, want / 2, seconds))], now=now)
            pacer.advance(interval_s=0.1, now=now)
        if worker.may:
            worker.send(round(used * worker.may), now)
        worker.exchange(now, want=want)
        assert worker.may is not None and 0 <= worker.may <= want

    sent_at = [at for worker in workers for at in worker.sent_at]
    assert most_in(60.0, sent_at) <= max(math.floor(rpm), 1)
    assert most_in(0.0, sent_at) <= max(0.975 * rpm / 60, 1.0)
