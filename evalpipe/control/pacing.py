"""Between law and pacer: refusals for a quota go to the pacer, and the law does not see them. Pure.

A law that took them for overload would cut, and cut again: fewer in flight still send too many a minute. Where the
first of them were taken for a cap, because nothing else was known, the limit that was cut for it is put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalpipe.control.law import Evidence, Law, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.pacer import Pacer
from evalpipe.control.refusals import Cause, Refusals

TELL_MOVE = 0.1  # a pace that moved by less is no news
REMEMBER_S = 120.0  # a limit that was cut longer ago is not put back


class QuotaWatch:
    """Sifts what the law is about to see, once a tick. Owns no limit and no rate; moves both."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._refusals = Refusals()
        self._epoch = 0  # of the law, since the last reaction to a quota
        self._before: tuple[float, float] | None = None  # the limit before it was cut as for a cap, and when
        self._told: float | None = None  # the pace that was told last
        self._has_told_needless = False

    def sift(
        self, observation: Observation, law: Law, *, gradient: float | None, interval_s: float, now: float
    ) -> tuple[Observation, LimitChange | None]:
        """Return what the law may see, and what changed for a quota. Call it before the law decides."""
        pacer, old = self._pacer, law.state.limit
        self._hear(observation, now)
        refused = [sample for sample in observation.samples if sample.outcome is Outcome.DROPPED]
        # what was out when the door was shut, and the probes since, say nothing of the limit
        hidden = refused if pacer.door.is_closed else [s for s in refused if self._is_old(s)]
        news = [sample for sample in refused if sample.epoch >= self._news_from(law)]
        if news:
            hidden = hidden + self._shut(news, observation, law, gradient=gradient, interval_s=interval_s, now=now)
        has_opened = pacer.advance(interval_s=interval_s, now=now)
        ids = {id(sample) for sample in hidden}
        seen = replace(observation, samples=tuple(s for s in observation.samples if id(s) not in ids))
        is_told = has_opened or law.state.limit != old or (bool(news) and pacer.knows_quota)
        return seen if ids else observation, self._change(old, law, len(refused)) if is_told else None

    def _hear(self, observation: Observation, now: float) -> None:
        self._pacer.on_answers(observation.samples)
        self._pacer.on_told(observation.told, now=now)
        refused = [sample for sample in observation.samples if sample.outcome is Outcome.DROPPED]
        if refused:
            self._pacer.on_refused(refused, now=now)
        for sample in observation.samples:
            if sample.outcome is Outcome.OK:
                self._refusals.note_accepted(sample.in_flight_at_send, now=now)

    def _is_old(self, sample: Sample) -> bool:
        """Refused for a quota that is known: it began before the last reaction to it."""
        return sample.kind == "rate_limited" and sample.epoch < self._epoch

    def _news_from(self, law: Law) -> int:
        """The first epoch of which nothing was refused yet."""
        return self._epoch if self._pacer.knows_quota else law.state.epoch

    def _shut(
        self,
        news: Sequence[Sample],
        observation: Observation,
        law: Law,
        *,
        gradient: float | None,
        interval_s: float,
        now: float,
    ) -> list[Sample]:
        """React to refusals of requests that began since the last reaction. Returns those that the law must not see."""
        advice_s = max((s.retry_after_s for s in news if s.retry_after_s is not None), default=None)
        stuck, is_paced = observation.overdue + observation.stalled, self._pacer.knows_quota
        causes = {self._refusals.judge(s, stuck=stuck, gradient=gradient, is_paced=is_paced) for s in news}
        if Cause.QUOTA in causes:
            self._pacer.close(advice_s=advice_s, now=now)
            self._react(law, now)
            return [sample for sample in news if sample.kind == "rate_limited"]
        if Cause.CAP in causes and self._remembered(now) is None:
            self._before = law.state.limit, now
        self._pacer.hold(advice_s=advice_s, is_suspect=Cause.CAP in causes, interval_s=interval_s, now=now)
        return []

    def _react(self, law: Law, now: float) -> None:
        """Begin a new epoch, so that what was sent before is known by its permit; put back what was cut for a cap."""
        law.state.epoch += 1
        self._epoch = law.state.epoch
        law.state.limit = max(law.state.limit, self._remembered(now) or 0.0)
        self._before = None

    def _remembered(self, now: float) -> float | None:
        return self._before[0] if self._before is not None and now - self._before[1] <= REMEMBER_S else None

    def _change(self, old: float, law: Law, refused: int) -> LimitChange | None:
        pace = self._pacer.rate if self._pacer.knows_quota else None
        is_same = self._told is not None and pace is not None and abs(pace / self._told - 1.0) < TELL_MOVE
        if pace is None or (is_same and law.state.limit == old):
            return None
        self._told = pace
        return LimitChange(old, law.state.limit, "quota", Evidence(samples=refused, state=self._describe()))

    def _describe(self) -> str:
        """Say what paces, and once that an advice was not needed."""
        needless_s = self._pacer.door.needless_s
        if needless_s is None or self._has_told_needless:
            return self._pacer.describe()
        self._has_told_needless = True
        return f"{self._pacer.describe()}; a Retry-After of {needless_s:.0f} s was not needed"
