"""ControlCore: the whole of control in one pure object. A law decides, a LeaseBook shares, a meter watches.

The controller actor, virtual time and tests drive the same object; each gives `now` and gets answers at once. Law and
shadow laws see one merged Observation a tick, however many workers report.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from evalpipe.control.baseline import Baselines
from evalpipe.control.law import Evidence, Law, LimitChange
from evalpipe.control.lease import Lease, LeaseBook, Process, Report
from evalpipe.control.observation import Observation, Outcome, merge
from evalpipe.control.pacer import Pacer
from evalpipe.control.pacing import Moment, QuotaWatch
from evalpipe.control.quota import UNDECLARED, Quota
from evalpipe.control.work import GradientMeter

TICK_S = 0.1  # decisions; the exchange interval of a single worker
LATE_EXCHANGES = 2.0  # a tick waits no longer for the reports that are missing
RECORD_S = 0.5  # rows of the flight recorder
KEEP = 20_000  # rows and changes kept until drained: 2.7 hours of records


@dataclass(frozen=True, slots=True)
class Tick:
    """One row of the flight recorder. at: seconds since the controller began. Rates over the time since the last row.

    gradient: baseline over recent latency per unit of work, unclamped, None before it could be measured.
    ttft_s: median to the first token of the answers since the row before, None without a streamed one.
    reason: of the last move since the row before, "" if the limit stayed. shadows: JSON-able, law -> its limit.
    pace: requests a second that a quota allows, None without one. is_paced: the quota held something back.
    """

    at: float
    limit: float
    in_flight: int
    waiting: int
    overdue: int
    stalled: int
    tokens_per_s: float
    requests_per_s: float
    rejected: int
    baseline_s: float | None
    recent_s: float | None
    gradient: float | None
    reason: str
    workers: int
    shadows: Mapping[str, float]
    ttft_s: float | None = None
    pace: float | None = None
    is_paced: bool = False


@dataclass(frozen=True, slots=True)
class TimedChange:
    """A LimitChange and when it happened, seconds since the controller began."""

    at: float
    change: LimitChange


class ControlCore:
    """Take reports in, give leases out, move the limit once a tick, remember why."""

    def __init__(
        self,
        law: Law,
        *,
        ttl_s: float = 15.0,
        exchange_s: float = 0.1,
        shadows: Mapping[str, Law] | None = None,
        unheard: Iterable[Process] = (),
        quota: Quota | None = UNDECLARED,
        pace: float | None = None,
    ) -> None:
        """unheard: processes that may hold leases of the controller before this one, see LeaseBook.

        quota: as declared; what was not is learned from what the server refuses. None: nothing is paced, and the law
        sees every refusal. pace: requests a second that the controller before this one had learned, None for none.
        """
        self.law = law
        self.shadows = dict(shadows or {})
        self.book = LeaseBook(math.floor(law.state.limit), ttl_s=ttl_s, exchange_s=exchange_s, unheard=unheard)
        self.book.epoch = law.state.epoch
        self.meter = GradientMeter()
        self.pacer = None if quota is None else Pacer(quota, pace=pace)
        self._quota_watch = None if self.pacer is None else QuotaWatch(self.pacer)
        self.baselines = Baselines()
        self._latest: dict[str, Observation] = {}
        self._heard: set[str] = set()  # since the last tick
        self._saw_overload = False
        self._interval_s = exchange_s
        self._began_at: float | None = None
        self._ticked_at = -math.inf
        self._ticks: list[Tick] = []
        self._changes: list[TimedChange] = []
        self._since = _Since()
        self._tokens_per_s: float | None = None

    def exchange(self, report: Report, *, now: float, cpu_s: float | None = None) -> Lease:
        """Answer one worker. Raises StateError for a worker process that was replaced by a newer one.

        cpu_s: CPU time that this process has used, None where exchanges are taken to cost what they usually do.
        """
        if cpu_s is not None:
            self.book.cost.note(cpu_s)
        if self._began_at is None:
            self._began_at = self._since.at = now
        is_new = self.book.is_new(report)
        if is_new:
            self._forget_lost(now)  # before: what a worker says after its TTL is news
            self._absorb(report)
            if self.pacer is not None:
                self.pacer.hear(report, now=now)
            # the law first: permits must be granted under the very limit and epoch they are stamped with
            if self._is_due(now):
                self.tick(now=now)
        lease = self.book.exchange(report, now=now)
        self._interval_s = lease.next_exchange_s
        credits = self._credits(report, lease.permits, is_new=is_new, now=now)
        return replace(lease, overdue=self.baselines.overdue, credits=credits)

    def tick(self, *, now: float) -> None:
        """Let the law see what came in since the last tick, and apply its word to the book."""
        self._ticked_at = now
        self._forget_lost(now)
        self._heard.clear()
        self._saw_overload = False
        observation = merge(self._latest.values())
        self._latest = {name: _standing(o) for name, o in self._latest.items()}
        for sample in observation.samples:
            self.meter.observe(sample, now=now)
            self.book.linger_s = max(self.book.linger_s, sample.rtt_s)
        self.baselines.observe(observation.first_tokens, observation.samples, now=now)
        self._since.add(observation)
        self._decide(observation, now)
        if now - self._since.at >= RECORD_S:
            self._record(observation, now)

    def release(self, process: Process) -> None:
        """Forget a dead worker process: its permits and what it last said."""
        if self.book.release(process):
            self._forget(process[0])

    def drain_records(self) -> tuple[list[Tick], list[TimedChange]]:
        """Hand over recorded ticks and changes; each is given once."""
        ticks, self._ticks = self._ticks, []
        changes, self._changes = self._changes, []
        return ticks, changes

    @property
    def limit(self) -> float:
        return self.law.state.limit

    def _is_due(self, now: float) -> bool:
        """A tick is one report of each worker: tokens of some over the time of all would be noise.

        It does not wait for one that is late, nor when a worker saw an overload.
        """
        elapsed_s = now - self._ticked_at
        if elapsed_s < TICK_S * 0.99:  # floating point: a tick of exactly 0.1 s is due
            return False
        return (
            len(self._heard) == len(self._latest)
            or elapsed_s >= LATE_EXCHANGES * self._interval_s * 0.99
            or self._saw_overload
        )

    def _forget_lost(self, now: float) -> None:
        for name in self.book.expire(now=now):
            self._forget(name)

    def _forget(self, worker: str) -> None:
        self._latest.pop(worker, None)
        self._heard.discard(worker)
        if self.pacer is not None:
            self.pacer.forget(worker)

    def _absorb(self, report: Report) -> None:
        old = self._latest.get(report.worker)
        self._latest[report.worker] = report.observation if old is None else _joined(old, report.observation)
        self._heard.add(report.worker)
        self._saw_overload |= any(sample.outcome is Outcome.DROPPED for sample in report.observation.samples)

    def _decide(self, observation: Observation, now: float) -> None:
        observation = self._sift(observation, now)
        self.law.observe(observation)
        self._note(self.law.decide(now=now), observation, now)
        self.book.set_limit(math.floor(self.law.state.limit), epoch=self.law.state.epoch)
        for shadow in self.shadows.values():
            shadow.observe(observation)
            shadow.decide(now=now)

    def _sift(self, observation: Observation, now: float) -> Observation:
        """Leave out what the law must not see: refusals for a quota are the pacer's."""
        if self.pacer is None or self._quota_watch is None:
            return observation
        self._since.is_paced |= self.pacer.is_holding
        moment = Moment(now, self._interval_s, self.meter.gradient)
        seen, change = self._quota_watch.sift(observation, self.law, moment)
        self._note(change, observation, now)
        return seen

    def _note(self, change: LimitChange | None, observation: Observation, now: float) -> None:
        if change is not None:
            change = replace(change, evidence=self._complete(change.evidence, observation))
            self._changes.append(TimedChange(self._elapsed(now), change))
            del self._changes[:-KEEP]
            self._since.reason = change.reason

    def _credits(self, report: Report, permits: int, *, is_new: bool, now: float) -> int | None:
        if self.pacer is None:
            return None
        return self.pacer.lend(report, permits=permits, now=now) if is_new else self.pacer.lent(report.worker)

    def _complete(self, evidence: Evidence, observation: Observation) -> Evidence:
        """Fill in what the law does not measure itself: every change is shown with the same gradient."""
        meter = self.meter
        if evidence.baseline_s is None or evidence.recent_s is None:
            evidence = replace(evidence, baseline_s=meter.baseline_s, recent_s=meter.recent_s, per_work=True)
            evidence = replace(evidence, gradient=meter.gradient)
        elif not evidence.per_work:
            evidence = replace(evidence, gradient=meter.gradient)
        return replace(evidence, overdue=observation.overdue, tokens_per_s=self._tokens_per_s)

    def _record(self, observation: Observation, now: float) -> None:
        since, seconds = self._since, now - self._since.at
        tick = Tick(
            at=self._elapsed(now),
            limit=self.law.state.limit,
            in_flight=observation.in_flight,
            waiting=observation.waiting,
            overdue=observation.overdue,
            stalled=observation.stalled,
            tokens_per_s=since.tokens / seconds,
            requests_per_s=since.finished / seconds,
            rejected=since.rejected,
            baseline_s=self.meter.baseline_s,
            recent_s=self.meter.recent_s,
            gradient=self.meter.gradient,
            reason=since.reason,
            workers=self.book.workers,
            shadows={name: shadow.state.limit for name, shadow in self.shadows.items()},
            ttft_s=statistics.median(since.ttfts_s) if since.ttfts_s else None,
            pace=None if self.pacer is None else self.pacer.rate,
            is_paced=since.is_paced,
        )
        self._tokens_per_s = tick.tokens_per_s
        self._ticks.append(tick)
        del self._ticks[:-KEEP]
        self._since = _Since(at=now)

    def _elapsed(self, now: float) -> float:
        return now - self._began_at if self._began_at is not None else 0.0


@dataclass(slots=True)
class _Since:
    """Counts since the last row of the recorder."""

    at: float = 0.0
    tokens: int = 0
    finished: int = 0
    rejected: int = 0
    reason: str = ""
    is_paced: bool = False
    ttfts_s: list[float] = field(default_factory=list)

    def add(self, observation: Observation) -> None:
        self.tokens += observation.output_tokens
        self.finished += sum(s.outcome is Outcome.OK for s in observation.samples)
        self.rejected += sum(s.outcome is Outcome.DROPPED for s in observation.samples)
        self.ttfts_s += [s.ttft_s for s in observation.samples if s.outcome is Outcome.OK and s.ttft_s is not None]


def _joined(old: Observation, new: Observation) -> Observation:
    """Two reports of one worker between ticks: flows add up, levels are the newer ones."""
    return replace(
        new,
        in_flight_peak=max(old.in_flight_peak, new.in_flight_peak),
        prefill_tokens=old.prefill_tokens + new.prefill_tokens,
        output_tokens=old.output_tokens + new.output_tokens,
        samples=old.samples + new.samples,
        first_tokens=old.first_tokens + new.first_tokens,
        told=old.told + new.told,
        span_s=old.span_s + new.span_s,
        stream_s=old.stream_s + new.stream_s,
    )


def _standing(observation: Observation) -> Observation:
    """What remains true of a worker after its report was used: levels stay, flows were counted."""
    return replace(
        observation,
        in_flight_peak=observation.in_flight,
        prefill_tokens=0,
        output_tokens=0,
        samples=(),
        first_tokens=(),
        told=(),
        span_s=0.0,
        stream_s=0.0,
    )
