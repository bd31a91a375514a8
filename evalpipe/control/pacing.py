"""Between law and pacer: refusals for a quota go to the pacer, and the law does not see them. Pure.

A law that took them for overload would cut, and cut again: fewer in flight still send too many a minute. Where the
first of them were taken for a cap, because nothing else was known, the limit that was cut for it is put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalpipe.control.law import Evidence, Law, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.pacer import Pacer
from evalpipe.control.refusals import Cause, Refusals

TELL_MOVE = 0.1  # a pace that moved by less is no news
REMEMBER_S = 120.0  # a limit that was cut longer ago is not put back


@dataclass(frozen=True, slots=True)
class Moment:
    """What a tick knows beside the observation. gradient: the congestion gradient, None while unknown.

    interval_s: between two exchanges of a worker.
    """

    now: float
    interval_s: float
    gradient: float | None


class QuotaWatch:
    """Sifts what the law is about to see, once a tick. Owns no limit and no rate; moves both."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer, self._teller = pacer, _Teller(pacer)
        self._refusals = Refusals()
        self._epoch = 0  # of the law, since the last reaction to a quota
        self._before: tuple[float, float] | None = None  # the limit before it was cut as for a cap, and when

    def sift(self, observation: Observation, law: Law, moment: Moment) -> tuple[Observation, LimitChange | None]:
        """Return what the law may see, and what changed for a quota. Call it before the law decides."""
        pacer, old = self._pacer, law.state.limit
        refused = [sample for sample in observation.samples if sample.outcome is Outcome.DROPPED]
        self._hear(observation, refused, moment.now)
        # what was out when the door was shut, and the probes since, say nothing of the limit
        hidden = refused if pacer.door.is_closed else [sample for sample in refused if self._is_old(sample)]
        news = [sample for sample in refused if sample.epoch >= self._news_from(law)]
        if news:
            hidden = hidden + self._react(news, observation, law, moment)
        has_opened = pacer.advance(interval_s=moment.interval_s, now=moment.now)
        is_worth_telling = has_opened or law.state.limit != old or (bool(news) and pacer.knows_quota)
        change = self._teller.change(old, law.state.limit, refused=len(refused)) if is_worth_telling else None
        return _without(observation, hidden), change

    def _hear(self, observation: Observation, refused: Sequence[Sample], now: float) -> None:
        self._pacer.on_answers(observation.samples)
        self._pacer.on_told(observation.told, now=now)
        if refused:
            self._pacer.on_refused(refused, now=now)
        for sample in observation.samples:
            if sample.outcome is Outcome.OK:
                self._refusals.note_accepted(sample.in_flight_at_send, now=now)

    def _is_old(self, sample: Sample) -> bool:
        """Refused for a quota that is known: it began before the last reaction to it."""
        return sample.kind == "rate_limited" and sample.epoch < self._epoch

    def _news_from(self, law: Law) -> int:
        """The first epoch of which no refusal was reacted to."""
        return self._epoch if self._pacer.knows_quota else law.state.epoch

    def _react(self, news: Sequence[Sample], seen: Observation, law: Law, moment: Moment) -> list[Sample]:
        """Shut the door, for what it was that refused. Returns those refusals that the law must not see."""
        advice_s = max((s.retry_after_s for s in news if s.retry_after_s is not None), default=None)
        pacer, stuck, is_paced = self._pacer, seen.overdue + seen.stalled, self._pacer.knows_quota
        judge = self._refusals.judge
        causes = {judge(each, stuck=stuck, gradient=moment.gradient, is_paced=is_paced) for each in news}
        is_refuted = pacer.learned.is_refuted(now=moment.now)
        if Cause.QUOTA in causes and not is_refuted:
            pacer.close(advice_s=advice_s, now=moment.now)
            self._begin_epoch(law, moment.now)
            return [sample for sample in news if sample.kind == "rate_limited"]
        is_cap = Cause.CAP in causes or Cause.QUOTA in causes
        if is_cap and self._remembered(moment.now) is None:
            self._before = law.state.limit, moment.now
        is_suspect = is_cap and not is_refuted
        pacer.hold(advice_s=advice_s, is_suspect=is_suspect, interval_s=moment.interval_s, now=moment.now)
        return []

    def _begin_epoch(self, law: Law, now: float) -> None:
        """Let permits tell what was sent before from what comes after; put back what was cut for a cap."""
        law.state.epoch += 1
        self._epoch = law.state.epoch
        law.state.limit = max(law.state.limit, self._remembered(now) or 0.0)
        self._before = None

    def _remembered(self, now: float) -> float | None:
        return self._before[0] if self._before is not None and now - self._before[1] <= REMEMBER_S else None


class _Teller:
    """Says what paces, when that is news."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._pace: float | None = None  # that was told last
        self._has_told_needless = False

    def change(self, old: float, new: float, *, refused: int) -> LimitChange | None:
        """old, new: the limit, which most often stays. refused: requests, in this tick."""
        pace = self._pacer.rate if self._pacer.knows_quota else None
        if pace is None or (old == new and self._is_known(pace)):
            return None
        self._pace = pace
        return LimitChange(old, new, "quota", Evidence(samples=refused, state=self._describe()))

    def _is_known(self, pace: float) -> bool:
        return self._pace is not None and abs(pace / self._pace - 1.0) < TELL_MOVE

    def _describe(self) -> str:
        needless_s = self._pacer.door.needless_s
        if needless_s is None or self._has_told_needless:
            return self._pacer.describe()
        self._has_told_needless = True
        return f"{self._pacer.describe()}; a Retry-After of {needless_s:.0f} s was not needed"


def _without(observation: Observation, hidden: Sequence[Sample]) -> Observation:
    if not hidden:
        return observation
    ids = {id(sample) for sample in hidden}
    return replace(observation, samples=tuple(sample for sample in observation.samples if id(sample) not in ids))
