"""A worker in virtual time: what it has in flight, and what it tells the controller of it.

It counts with the code of real workers (control/streams.py), and sees its streams as they do: in chunks.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evalpipe.control.lease import Lease, Permit, Report, WorkerLease
from evalpipe.control.observation import Outcome, Sample
from evalpipe.control.streams import Stream, Streams, is_in_sample
from evalpipe.sim.engine import Job, Rejection

# What the failure table makes of a refusal (endpoint/failures.py, which is a layer beside this one).
REJECTED_KINDS = {429: "rate_limited", 503: "overloaded"}
CHUNK_S = 0.05  # a stream's tokens are gathered for so long, as the HTTP face does (Profile.chunk_s)
# What has arrived is seen about so late: event loops on shared cores (measured 2026-11 over HTTP: tokens/s of a tenth
# of a second scatter by 0.09 to 0.15, whatever the number of streams).
LATE_S = 0.008


@dataclass(slots=True, eq=False)
class Sent:
    """An attempt in flight. tokens: that the server had made of the answer at tokens_at; its client may know fewer."""

    job: Job
    worker: VirtualWorker
    permit: Permit
    sent_at: float
    stream: Stream = field(init=False)
    first_at: float | None = None
    tokens: int = 0
    tokens_at: float = 0.0

    def __post_init__(self) -> None:
        is_streamed = self.worker.is_streaming(self.permit.in_flight_at_send)
        self.stream = Stream(self.sent_at, self.job.prompt_tokens, is_streamed)

    def sample(self, at: float, rejection: Rejection | None = None) -> Sample:
        return Sample(
            Outcome.OK if rejection is None else Outcome.DROPPED,
            rtt_s=at - self.sent_at,
            kind="ok" if rejection is None else REJECTED_KINDS.get(rejection.status, "overloaded"),
            ttft_s=None if self.stream.first_at is None else self.stream.first_at - self.sent_at,
            prompt_tokens=self.job.prompt_tokens if rejection is None else 0,
            output_tokens=self.job.output_tokens if rejection is None else 0,
            epoch=self.permit.epoch,
            limit=self.permit.limit,
            in_flight_at_send=self.permit.in_flight_at_send,
            retry_after_s=None if rejection is None else rejection.retry_after_s,
        )

    def arrived(self, tokens: int, now: float, *, late_s: float) -> int:
        """Return the tokens that the client has seen: those of the chunks that left late_s ago and before.

        tokens: that the server has made by now, taken to have come evenly since it was last asked.
        """
        assert self.first_at is not None
        before, before_at = self.tokens, self.tokens_at
        self.tokens, self.tokens_at = tokens, now
        left_at = now - late_s - max(now - late_s - self.first_at, 0.0) % CHUNK_S
        share = (left_at - before_at) / (now - before_at) if now > before_at else 1.0
        return max(before + int(share * (tokens - before)), self.stream.told)


@dataclass(slots=True, eq=False)
class VirtualWorker:
    """Counts since the last exchange, and levels now. is_sampling: a tenth of the requests is streamed, not all."""

    name: str
    is_sampling: bool = False
    lease: WorkerLease = field(default_factory=WorkerLease)
    retries: deque[Job] = field(default_factory=deque)
    _streams: Streams = field(default_factory=lambda: Streams(now=0.0))
    _begun: dict[int, Sent] = field(default_factory=dict)  # by job
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"lateness/{self.name}")

    def is_streaming(self, in_flight: int) -> bool:
        """Decide whether the next request is streamed. in_flight: of the whole cluster, it included."""
        return not self.is_sampling or is_in_sample(in_flight, self._rng)

    def renew(self, lease: Lease) -> None:
        self.lease.renew(lease)
        self._streams.renew(lease)

    def on_sent(self, sent: Sent) -> None:
        self._streams.begin(sent.stream)

    def on_first_token(self, sent: Sent, at: float) -> None:
        sent.first_at = sent.tokens_at = at
        if sent.stream.is_streamed:
            self._begun[sent.job.job_id] = sent
            self._streams.on_first_token(sent.stream, now=at)
            self._tell(sent, 1)

    def on_ended(self, sent: Sent, sample: Sample) -> None:
        self.lease.give_back()
        self._begun.pop(sent.job.job_id, None)
        if sample.outcome is Outcome.OK and sent.stream.first_at is not None:
            self._tell(sent, sample.output_tokens)  # the last chunk brings the rest
        self._streams.on_end(sent.stream, sample, now=sent.sent_at + sample.rtt_s)

    def report(self, *, want: int, tokens_of: Callable[[int], int], now: float) -> Report:
        """Begin an exchange. tokens_of: output tokens of a job that the server has made so far."""
        late_s = self._rng.expovariate(1 / LATE_S)
        for job_id, sent in self._begun.items():
            self._tell(sent, sent.arrived(tokens_of(job_id), now, late_s=late_s))
        sequence, in_flight, peak, held = self.lease.ask(want=want, now=now)
        observation = replace(self._streams.take(now=now), in_flight=in_flight, in_flight_peak=peak)
        return Report(self.name, 1, sequence, held, want, observation, sent=self.lease.sent)

    def _tell(self, sent: Sent, tokens: int) -> None:
        self._streams.on_tokens(sent.stream, tokens - sent.stream.told)
