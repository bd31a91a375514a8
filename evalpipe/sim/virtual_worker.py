"""A worker in virtual time: what it has in flight, and what it tells the controller of it.

The counterpart of runtime/observer.py, which does the same for real streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from evalpipe.control.baseline import Deadlines, bin_of
from evalpipe.control.lease import Lease, Permit, Report, WorkerLease
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.sim.engine import Job, Rejection

# What the failure table makes of a refusal (endpoint/failures.py, which is a layer beside this one).
REJECTED_KINDS = {429: "rate_limited", 503: "overloaded"}
STALLED_S, STALLED_GAPS = 1.0, 20.0  # a stream that began is stalled after a second, or 20 of its usual gaps


@dataclass(slots=True, eq=False)
class Sent:
    """An attempt in flight. silent_at: when it was preempted, None while it runs; tokens: that it had by then."""

    job: Job
    worker: VirtualWorker
    permit: Permit
    sent_at: float
    first_at: float | None = None
    silent_at: float | None = None
    tokens: int = 0

    def sample(self, at: float, rejection: Rejection | None = None) -> Sample:
        return Sample(
            Outcome.OK if rejection is None else Outcome.DROPPED,
            rtt_s=at - self.sent_at,
            kind="ok" if rejection is None else REJECTED_KINDS.get(rejection.status, "overloaded"),
            ttft_s=None if self.first_at is None else self.first_at - self.sent_at,
            prompt_tokens=self.job.prompt_tokens if rejection is None else 0,
            output_tokens=self.job.output_tokens if rejection is None else 0,
            epoch=self.permit.epoch,
            limit=self.permit.limit,
            in_flight_at_send=self.permit.in_flight_at_send,
            retry_after_s=None if rejection is None else rejection.retry_after_s,
        )

    def is_stalled(self, now: float) -> bool:
        assert self.first_at is not None and self.silent_at is not None
        gap_s = (self.silent_at - self.first_at) / max(self.tokens, 1)
        return now - self.silent_at > max(STALLED_S, STALLED_GAPS * gap_s)


@dataclass(slots=True, eq=False)
class VirtualWorker:
    """Counts since the last exchange, and levels now."""

    name: str
    lease: WorkerLease = field(default_factory=WorkerLease)
    retries: deque[Job] = field(default_factory=deque)
    _deadlines: Deadlines = field(default_factory=Deadlines)
    _waiting: dict[int, Sent] = field(default_factory=dict)  # without a first token, by job
    _silent: dict[int, Sent] = field(default_factory=dict)  # began, then preempted
    _samples: list[Sample] = field(default_factory=list)
    _first_tokens: dict[int, FirstTokens] = field(default_factory=dict)
    _prefill_tokens: int = 0

    def renew(self, lease: Lease) -> None:
        self.lease.renew(lease)
        if lease.overdue != self._deadlines.table:
            self._deadlines = Deadlines(lease.overdue)

    def on_sent(self, sent: Sent) -> None:
        self._waiting[sent.job.job_id] = sent

    def on_first_token(self, sent: Sent, at: float) -> None:
        sent.first_at = at
        del self._waiting[sent.job.job_id]
        self._prefill_tokens += sent.job.prompt_tokens
        key, seconds = bin_of(sent.job.prompt_tokens), at - sent.sent_at
        late = seconds > self._deadlines.after_s(key)
        old = self._first_tokens.get(key) or FirstTokens(key, 0, 0, seconds)
        self._first_tokens[key] = FirstTokens(key, old.count + 1, old.late + late, min(old.least_s, seconds))

    def on_preempted(self, sent: Sent, at: float, tokens: int) -> None:
        if sent.first_at is not None:
            sent.silent_at, sent.tokens = at, tokens
            self._silent[sent.job.job_id] = sent

    def on_ended(self, sent: Sent, sample: Sample) -> None:
        self.lease.give_back()
        self._waiting.pop(sent.job.job_id, None)
        self._silent.pop(sent.job.job_id, None)
        self._samples.append(sample)

    def report(self, *, want: int, output_tokens: int, tokens_of: Callable[[int], int], now: float) -> Report:
        """Begin an exchange. tokens_of: output tokens of a job so far; more than before mean that it runs again."""
        sequence, in_flight, peak, held = self.lease.ask(want=want, now=now)
        self._silent = {key: sent for key, sent in self._silent.items() if tokens_of(key) <= sent.tokens}
        observation = Observation(
            in_flight=in_flight,
            in_flight_peak=peak,
            waiting=len(self._waiting),
            overdue=self._overdue(now),
            stalled=sum(sent.is_stalled(now) for sent in self._silent.values()),
            prefill_tokens=self._prefill_tokens,
            output_tokens=output_tokens,
            samples=tuple(self._samples),
            first_tokens=tuple(self._first_tokens.values()),
        )
        self._samples, self._first_tokens, self._prefill_tokens = [], {}, 0
        return Report(self.name, 1, sequence, held, want, observation)

    def _overdue(self, now: float) -> int:
        after_s = self._deadlines.after_s
        return sum(now - sent.sent_at > after_s(bin_of(sent.job.prompt_tokens)) for sent in self._waiting.values())
