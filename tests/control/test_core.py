"""ControlCore: one tick for all workers, leases that say what holds, records that say why."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from evalpipe.control.build import LAW_NAMES, build_law
from evalpipe.control.core import ControlCore, Tick
from evalpipe.control.law import Evidence, LimitChange
from evalpipe.control.lease import Report
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.errors import StateError


@dataclass
class _State:
    limit: float
    epoch: int = 0


@dataclass
class ScriptedLaw:
    """Remembers what it was shown; moves to the limits it was given, one a decision."""

    limits: list[float]
    state: _State = field(default_factory=lambda: _State(10.0))
    seen: list[Observation] = field(default_factory=list)

    def observe(self, observation: Observation) -> None:
        self.seen.append(observation)

    def decide(self, *, now: float) -> LimitChange | None:
        if not self.limits:
            return None
        old, self.state.limit = self.state.limit, self.limits.pop(0)
        self.state.epoch += self.state.limit < old
        return LimitChange(old, self.state.limit, "grow" if self.state.limit > old else "queue", Evidence(samples=1))


class Worker:
    """One worker's side of the exchange, counting its reports."""

    def __init__(self, core: ControlCore, name: str = "w0", *, incarnation: int = 1) -> None:
        self.core, self.name, self.incarnation, self.sequence = core, name, incarnation, 0

    def exchange(self, *, now: float, want: int = 100, **observed):
        self.sequence += 1
        return self.repeat(now=now, want=want, **observed)

    def repeat(self, *, now: float, want: int = 100, **observed):
        report = Report(self.name, self.incarnation, self.sequence, 0, want, Observation(**observed))
        return self.core.exchange(report, now=now)


def answers(count: int, *, rtt_s: float = 1.0, limit: int = 10) -> tuple[Sample, ...]:
    sample = Sample(Outcome.OK, rtt_s, prompt_tokens=100, output_tokens=100, limit=limit, in_flight_at_send=limit)
    return (sample,) * count


def drops(count: int, *, epoch: int = 0) -> tuple[Sample, ...]:
    return (Sample(Outcome.DROPPED, 0.1, kind="rate_limited", epoch=epoch),) * count


def drained(core: ControlCore) -> list[Tick]:
    return core.drain_records()[0]


def test_leases_carry_what_overdue_means():
    """First tokens that one worker saw tell the other how long to wait; before any, the table is empty."""
    core = ControlCore(ScriptedLaw([]))
    one, two = Worker(core, "w0"), Worker(core, "w1")

    before = one.exchange(now=0.0)
    after = [
        one.exchange(now=0.1, first_tokens=(FirstTokens(7, 3, 0, 0.05), FirstTokens(12, 1, 0, 1.0))),
        two.exchange(now=0.1),
    ]

    assert before.overdue == ()
    assert [lease.overdue for lease in after] == [((7, pytest.approx(0.15)), (12, 2.0))] * 2


def test_first_tokens_are_seen_once():
    """They are flows, as tokens are: joined between ticks, gone after one."""
    law = ScriptedLaw([])
    worker = Worker(ControlCore(law))

    worker.exchange(now=0.0)
    worker.exchange(now=0.05, first_tokens=(FirstTokens(7, 1, 0, 0.1),))
    worker.exchange(now=0.1, first_tokens=(FirstTokens(7, 2, 1, 0.2),))
    worker.exchange(now=0.2)

    counts = [sum(first.count for first in seen.first_tokens) for seen in law.seen]
    assert counts == [0, 3, 0]


def test_one_tick_merges_all_workers():
    """The law sees one observation a tick, of all workers together; between ticks it sees nothing."""
    law = ScriptedLaw([])
    core = ControlCore(law)
    one, two = Worker(core, "w0"), Worker(core, "w1")

    one.exchange(now=0.0, in_flight=1)
    one.exchange(now=0.05, in_flight=2, output_tokens=30, samples=answers(1))
    two.exchange(now=0.06, in_flight=3, output_tokens=40, samples=answers(2))
    two.exchange(now=0.1, in_flight=4, output_tokens=5)

    assert len(law.seen) == 2
    assert (law.seen[1].in_flight, law.seen[1].output_tokens, len(law.seen[1].samples)) == (6, 75, 3)


def test_a_tick_is_one_report_of_each_worker():
    """It waits for the second worker, for two intervals at most, and not at all once one saw an overload."""
    law = ScriptedLaw([])
    core = ControlCore(law)
    one, two = Worker(core, "w0"), Worker(core, "w1")
    one.exchange(now=0.0)

    seen = []
    for now, worker in ((0.05, two), (0.12, one), (0.25, one), (0.3, two), (0.42, one), (0.52, one)):
        worker.exchange(now=now)
        seen.append(len(law.seen))
    one.exchange(now=0.63, samples=drops(1))

    assert seen == [1, 2, 2, 3, 3, 4]
    assert len(law.seen) == 5


def test_samples_are_seen_once_and_levels_stay():
    """A worker that says nothing between two ticks still has its requests out; its answers are not counted again."""
    law = ScriptedLaw([])
    core = ControlCore(law)
    quiet, busy = Worker(core, "quiet"), Worker(core, "busy")

    quiet.exchange(now=0.0, in_flight=5, in_flight_peak=9, waiting=2, output_tokens=10, samples=answers(1))
    busy.exchange(now=0.2)

    second = law.seen[1]
    assert (second.in_flight, second.in_flight_peak, second.waiting) == (5, 5, 2)
    assert (second.output_tokens, second.samples) == (0, ())


def test_a_repeated_exchange_changes_nothing():
    """A report whose answer was lost comes again: same lease, nothing counted twice."""
    law = ScriptedLaw([])
    core = ControlCore(law)
    worker = Worker(core)

    first = worker.exchange(now=0.0, in_flight=1, samples=answers(3))
    again = worker.repeat(now=0.2, in_flight=1, samples=answers(3))
    worker.exchange(now=0.3)

    assert again == first
    assert sum(len(observation.samples) for observation in law.seen) == 3


def test_the_lease_after_a_change_carries_the_new_limit():
    """What is sent from now on is stamped with the limit and the epoch that hold from now on."""
    core = ControlCore(ScriptedLaw([16.7, 5.2]))
    worker = Worker(core)

    grown = worker.exchange(now=0.0)
    cut = worker.exchange(now=0.1)

    assert (grown.limit, grown.epoch) == (16, 0)
    assert (cut.limit, cut.epoch) == (5, 1)


def test_the_exchange_that_cuts_lends_no_more_than_the_new_limit():
    """Else the worker resends at the old level under the new epoch, and its next 429 cuts again."""
    core = ControlCore(build_law("gradient", start=100))
    worker = Worker(core)
    worker.exchange(now=0.0, want=500)

    lease = worker.exchange(now=0.1, want=500, in_flight=95, samples=drops(5))

    assert (lease.limit, lease.epoch, lease.permits) == (70, 1, 70)


def test_a_repeated_exchange_after_a_cut_gets_the_same_lease():
    """Idempotent means equal, also where the first answer came with a cut."""
    core = ControlCore(ScriptedLaw([5.0]))
    worker = Worker(core)

    first = worker.exchange(now=0.0)

    assert worker.repeat(now=0.05) == first


def test_a_burst_of_rejections_seen_by_several_workers_cuts_once():
    """Each worker reports its own drops of the same epoch; the second tick knows them for old."""
    core = ControlCore(build_law("aimd", start=64))
    one, two = Worker(core, "w0"), Worker(core, "w1")

    one.exchange(now=0.0)
    one.exchange(now=0.1, samples=drops(4))
    two.exchange(now=0.2, samples=drops(6))

    assert core.limit == 32.0
    assert [timed.change.reason for timed in core.drain_records()[1]] == ["rejected"]


@pytest.mark.parametrize("law", [name for name in LAW_NAMES if name != "fixed"])
def test_every_change_carries_a_gradient_once_there_is_one(law: str):
    """Whichever law steers: after a baseline was measured no move is shown without its numbers."""
    core = ControlCore(build_law(law))
    worker = Worker(core)
    now = 0.0
    for step in range(200):
        now = step / 10
        limit = int(core.limit)
        worker.exchange(
            now=now,
            in_flight=limit,
            in_flight_peak=limit,
            overdue=3,
            samples=answers(2, rtt_s=1 + step / 50, limit=limit),
        )

    changes = [timed for timed in core.drain_records()[1] if timed.at > 1.0]
    assert changes
    assert all(timed.change.evidence.gradient is not None for timed in changes)
    assert all(timed.change.evidence.overdue == 3 for timed in changes)


def test_evidence_the_law_lacks_is_filled_in_from_the_meter():
    """aimd measures no latency: its cut still shows baseline, recent and their ratio, and its own sample count."""
    core = ControlCore(build_law("aimd", start=10))
    worker = Worker(core)
    worker.exchange(now=0.0, samples=answers(40, rtt_s=1.0))
    worker.exchange(now=0.1, samples=answers(40, rtt_s=2.0))
    core.drain_records()

    worker.exchange(now=0.2, samples=drops(2))

    evidence = core.drain_records()[1][0].change.evidence
    assert evidence.gradient == pytest.approx(0.5)
    assert evidence.recent_s / evidence.baseline_s == pytest.approx(2.0)
    assert evidence.samples == 2


def test_before_any_answer_the_evidence_says_nothing():
    """None where nothing was measured, never a made-up 1.0."""
    core = ControlCore(build_law("aimd", start=10))

    Worker(core).exchange(now=0.0, samples=drops(1))

    assert core.drain_records()[1][0].change.evidence.gradient is None


def test_the_recorder_writes_a_row_each_half_second():
    """Rates are over the time since the row before: 10 answers and 1,000 tokens a second, 2 rejections a row."""
    core = ControlCore(ScriptedLaw([]))
    worker = Worker(core)
    for step in range(16):
        new = drops(1) if step in (2, 3, 8, 9, 13, 14) else ()
        worker.exchange(
            now=100 + step / 10,
            in_flight=7,
            waiting=1,
            output_tokens=100 if step else 0,
            samples=(answers(1) if step else ()) + new,
        )

    ticks = drained(core)
    assert [tick.at for tick in ticks] == pytest.approx([0.5, 1.0, 1.5])
    assert [tick.requests_per_s for tick in ticks] == pytest.approx([10, 10, 10])
    assert [tick.tokens_per_s for tick in ticks] == pytest.approx([1000, 1000, 1000])
    assert [tick.rejected for tick in ticks] == [2, 2, 2]
    assert {(tick.in_flight, tick.waiting, tick.limit, tick.workers) for tick in ticks} == {(7, 1, 10.0, 1)}


def test_the_row_names_the_last_move_since_the_row_before():
    """A hold is an empty reason, not the one of a minute ago."""
    core = ControlCore(ScriptedLaw([12.0]))
    worker = Worker(core)
    for step in range(11):
        worker.exchange(now=step / 10)

    assert [tick.reason for tick in drained(core)] == ["grow", ""]


def test_records_are_handed_over_once():
    """The recorder writes each row once, however often it reads."""
    core = ControlCore(ScriptedLaw([12.0]))
    worker = Worker(core)
    worker.exchange(now=0.0)
    worker.exchange(now=0.6)

    first, second = core.drain_records(), core.drain_records()

    assert (len(first[0]), len(first[1])) == (1, 1)
    assert second == ([], [])


def test_a_shadow_sees_the_same_and_moves_nothing():
    """A shadow's limit is recorded beside the law's; the leases follow the law alone."""
    core = ControlCore(build_law("fixed", start=8), shadows={"aimd": build_law("aimd", start=8)})
    worker = Worker(core)
    worker.exchange(now=0.0)
    worker.exchange(now=0.1, samples=drops(1))

    lease = worker.exchange(now=0.6)

    (tick,) = drained(core)
    assert (tick.limit, dict(tick.shadows)) == (8.0, {"aimd": 4.0})
    assert (lease.limit, lease.epoch, lease.permits) == (8, 0, 8)
    assert core.drain_records()[1] == []


def test_a_worker_not_heard_for_a_ttl_is_forgotten():
    """Its requests out are not counted for ever; a host that was cut off is gone for the law too."""
    law = ScriptedLaw([])
    core = ControlCore(law, ttl_s=15.0)
    gone, here = Worker(core, "gone"), Worker(core, "here")
    gone.exchange(now=0.0, in_flight=5)
    here.exchange(now=10.0, in_flight=2)

    here.exchange(now=15.5, in_flight=2)

    assert core.book.workers == 1
    assert law.seen[-1].in_flight == 2


def test_a_worker_that_comes_back_after_its_ttl_is_heard():
    """What it reports now is news, however long it was cut off."""
    law = ScriptedLaw([])
    core = ControlCore(law, ttl_s=15.0)
    worker = Worker(core)
    worker.exchange(now=0.0)

    worker.exchange(now=20.0, in_flight=3, samples=answers(2))

    assert law.seen[-1].in_flight == 3
    assert len(law.seen[-1].samples) == 2


def test_a_dead_worker_is_forgotten_at_once():
    """`release` frees its permits and its last word."""
    law = ScriptedLaw([])
    core = ControlCore(law)
    dead, here = Worker(core, "dead"), Worker(core, "here")
    dead.exchange(now=0.0, in_flight=10, want=0)

    core.release(("dead", 1))
    lease = here.exchange(now=0.1)

    assert law.seen[-1].in_flight == 0
    assert lease.permits == 10


def test_a_replaced_process_gets_no_lease():
    """The old process of a name must not send beside the new one, and its report is not counted."""
    law = ScriptedLaw([])
    core = ControlCore(law)
    Worker(core, incarnation=2).exchange(now=0.0)

    with pytest.raises(StateError, match="replaced"):
        Worker(core, incarnation=1).exchange(now=0.2, samples=answers(1))

    assert all(not observation.samples for observation in law.seen)
