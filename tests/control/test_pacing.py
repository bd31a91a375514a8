"""Between law and pacer: what the law must not see, what is put back, and what is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from evalpipe.control.build import build_law
from evalpipe.control.core import ControlCore
from evalpipe.control.law import LimitChange
from evalpipe.control.lease import Report
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.quota import Quota


@dataclass
class _State:
    limit: float = 40.0
    epoch: int = 0


@dataclass
class HalvingLaw:
    """Halves at each refusal that it is shown."""

    state: _State = field(default_factory=_State)
    refused: int = 0
    _pending: int = 0

    def observe(self, observation: Observation) -> None:
        self._pending += sum(sample.outcome is Outcome.DROPPED for sample in observation.samples)

    def decide(self, *, now: float) -> LimitChange | None:
        pending, self._pending = self._pending, 0
        self.refused += pending
        if not pending:
            return None
        old, self.state.limit, self.state.epoch = self.state.limit, self.state.limit / 2, self.state.epoch + 1
        return LimitChange(old, self.state.limit, "rejected")


class Desk:
    """One worker at a core: tell it what came back."""

    def __init__(self, law: HalvingLaw, **options: object) -> None:
        self.core, self.law, self.sequence, self.sent = ControlCore(law, **options), law, 0, 0

    def exchange(self, now: float, *samples: Sample, begun: int = 0):
        self.sequence, self.sent = self.sequence + 1, self.sent + begun
        seen = Observation(in_flight=10, samples=samples)
        return self.core.exchange(Report("w0", 1, self.sequence, 0, 50, seen, sent=self.sent), now=now)

    def states(self) -> list[str]:
        return [timed.change.evidence.state for timed in self.core.drain_records()[1] if timed.change.reason == "quota"]


def refused(found: int, *, epoch: int = 0, kind: str = "rate_limited", retry_after_s: float | None = None) -> Sample:
    return Sample(Outcome.DROPPED, 0.02, kind=kind, epoch=epoch, in_flight_at_send=found, retry_after_s=retry_after_s)


def answered(found: int) -> Sample:
    return Sample(Outcome.OK, 1.0, prompt_tokens=10, output_tokens=10, in_flight_at_send=found)


def test_a_refusal_for_a_declared_quota_never_cuts():
    """The law does not see it, and the permits get a new epoch: what was out before is old news."""
    desk = Desk(HalvingLaw(), quota=Quota(rpm=600))
    desk.exchange(0.0)
    lease = desk.exchange(0.1, refused(20))
    desk.exchange(0.2, refused(20))

    assert (desk.law.refused, desk.law.state.limit) == (0, 40.0)
    assert lease.epoch == 1


def test_a_limit_that_was_cut_as_for_a_cap_is_put_back():
    """The first refusal is one at the most that ever was out; the next, at far fewer, shows a quota."""
    desk = Desk(HalvingLaw())
    desk.exchange(0.0, answered(40), begun=60)
    desk.exchange(0.1, refused(40))
    cut = desk.law.state.limit
    desk.exchange(1.0, begun=1)  # the probe
    desk.exchange(1.1, refused(10, epoch=1))

    assert (cut, desk.law.state.limit) == (20.0, 40.0)
    assert desk.states() == ["a quota is used up; one request at a time until it is refilled"]


def test_the_law_sees_what_says_the_server_is_busy():
    """503 at any number in flight, paced or not."""
    desk = Desk(HalvingLaw(), quota=Quota(rpm=600))
    desk.exchange(0.0)
    desk.exchange(0.1, refused(5, kind="overloaded"))

    assert (desk.law.refused, desk.law.state.limit) == (1, 20.0)


def test_an_outage_is_one_refusal():
    """While all is refused with 503, one probe goes at a time and the law is not cut again and again."""
    desk = Desk(HalvingLaw())
    desk.exchange(0.0)
    sent, epoch = 0, 0
    lease = desk.exchange(0.1, *[refused(40, kind="overloaded")] * 5)
    for step in range(2, 300):
        begun = min(lease.credits or 0, 50)
        sent += begun
        samples = [refused(1, epoch=lease.epoch, kind="overloaded")] * begun
        lease = desk.exchange(step / 10, *samples, begun=begun)
        epoch = lease.epoch

    assert sent <= 10  # in 30 s
    assert (desk.law.refused, epoch) == (5, 1)


def test_none_for_a_quota_leaves_the_law_alone():
    """The published laws see every refusal, and nothing is paced."""
    desk = Desk(HalvingLaw(), quota=None)
    desk.exchange(0.0)
    lease = desk.exchange(0.1, refused(1), refused(1))

    assert (desk.law.refused, lease.credits) == (2, None)


def test_needless_advice_is_told_once():
    """89 s was the advice; a second later the server took a request."""
    desk = Desk(HalvingLaw(), quota=Quota(rpm=6000))
    desk.exchange(0.0, begun=100)
    told = []
    for round_at in (1.0, 61.0):
        lease = desk.exchange(round_at, refused(20, epoch=99, retry_after_s=89.0))
        for step in range(1, 50):
            lease = desk.exchange(round_at + step / 10, begun=lease.credits or 0)
        told += desk.states()

    assert sum("a Retry-After of 89 s was not needed" in state for state in told) == 1


@pytest.mark.parametrize("law", ["aimd", "gradient", "progress", "fixed"])
def test_a_real_law_keeps_its_limit_over_a_quota(law: str):
    """Whatever steers, twenty refusals for a declared quota leave the limit where it was."""
    core = ControlCore(build_law(law, start=32), quota=Quota(rpm=600))
    for step in range(20):
        seen = Observation(in_flight=5, samples=(refused(5, epoch=1_000),))
        core.exchange(Report("w0", 1, step + 1, 0, 50, seen, sent=step), now=step / 10)

    assert core.limit == 32


def test_ticks_say_that_a_quota_holds_back():
    """60 a minute and 50 requests that could go: the tick is paced, and says at what rate."""
    desk = Desk(HalvingLaw(), quota=Quota(rpm=60))
    lease = desk.exchange(0.0)
    for step in range(1, 12):
        lease = desk.exchange(step / 10, begun=lease.credits or 0)
    ticks, _ = desk.core.drain_records()

    assert [tick.is_paced for tick in ticks] == [True] * len(ticks)
    assert ticks[-1].pace == pytest.approx(0.975)
