"""What a worker sees of its own requests, gathered into one Observation an exchange.

A request in flight is in one of two tables: waiting for its first token, or begun. An exchange scans those that wait;
those that began are scanned twice a second, so that a token costs no more than counting it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from evalpipe.control.baseline import Deadlines, bin_of
from evalpipe.control.lease import Lease, Permit
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.endpoint.failures import outcome_of
from evalpipe.errors import Failure
from evalpipe.records import Completion

STALL_SCAN_S = 0.5
STALLED_S, STALLED_GAPS = 1.0, 20.0  # a stream that began is stalled after a second, or 20 of its usual gaps


@dataclass(slots=True, eq=False)
class Watch:
    """One request in flight, told of by the endpoint as its stream arrives (endpoint.client.Progress).

    prompt_tokens: as expected when it was sent. moved_at: the scan that last found more tokens than the one before.
    """

    observer: Observer
    sent_at: float
    prompt_tokens: int
    first_at: float | None = None
    is_over: bool = False
    tokens_seen: int = 0
    tokens_scanned: int = 0
    moved_at: float = 0.0

    def first_token(self) -> None:
        self.observer.signs_of_life += 1
        if self.first_at is None and not self.is_over:
            self.observer.on_first_token(self)

    def tokens(self, count: int) -> None:
        self.tokens_seen += count
        self.observer.signs_of_life += 1
        self.observer.output_tokens += count

    def is_stalled(self, now: float) -> bool:
        """Silent for longer than its own pace accounts for. Call after a scan noted its tokens."""
        assert self.first_at is not None
        flowed_s = max(self.moved_at - STALL_SCAN_S - self.first_at, 0.0)  # at least: the last came within that scan
        gap_s = flowed_s / max(self.tokens_seen, 1)
        return now - self.moved_at > max(STALLED_S, STALLED_GAPS * gap_s)


class Observer:
    """Counts since the last exchange, and levels now. One per worker; `take` empties the counts.

    clock: float seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.signs_of_life = 0  # tokens and answers so far; never falls
        self.output_tokens = 0
        self._clock = clock
        self._waiting: set[Watch] = set()
        self._begun: set[Watch] = set()
        self._deadlines = Deadlines()
        self._prefill_tokens = 0
        self._samples: list[Sample] = []
        self._first_tokens: dict[int, FirstTokens] = {}
        self._stalled = 0
        self._scanned_at = clock()

    @property
    def waiting(self) -> int:
        """Requests in flight without a first token."""
        return len(self._waiting)

    def begin(self, prompt_tokens: int = 0) -> Watch:
        """A request goes out. prompt_tokens: about how long its prompt is, 0 where nobody knows."""
        watch = Watch(self, self._clock(), prompt_tokens)
        self._waiting.add(watch)
        return watch

    def renew(self, lease: Lease) -> None:
        """Take the deadlines of first tokens that came with a lease."""
        if lease.overdue != self._deadlines.table:
            self._deadlines = Deadlines(lease.overdue)

    def on_first_token(self, watch: Watch) -> None:
        watch.first_at = watch.moved_at = self._clock()
        self._waiting.discard(watch)
        self._begun.add(watch)
        self._prefill_tokens += watch.prompt_tokens
        key, seconds = bin_of(watch.prompt_tokens), watch.first_at - watch.sent_at
        late = seconds > self._deadlines.after_s(key)
        old = self._first_tokens.get(key) or FirstTokens(key, 0, 0, seconds)
        self._first_tokens[key] = FirstTokens(key, old.count + 1, old.late + late, min(old.least_s, seconds))

    def answered(self, watch: Watch, completion: Completion, permit: Permit) -> None:
        """End a request that was answered; chunks are not tokens, so the server's count settles the difference.

        An answer that came in one piece has no first token of its own: it counts as a sign of life, nothing more.
        """
        self.signs_of_life += 1
        counted = watch.prompt_tokens if watch.first_at is not None else 0
        self._prefill_tokens += completion.prompt_tokens - counted if completion.prompt_tokens else 0
        self.output_tokens += completion.output_tokens - watch.tokens_seen if completion.output_tokens else 0
        self._end(watch)
        self._samples.append(
            Sample(
                Outcome.OK,
                rtt_s=completion.rtt_s,
                ttft_s=completion.ttft_s,
                prompt_tokens=completion.prompt_tokens,
                output_tokens=completion.output_tokens,
                epoch=permit.epoch,
                limit=permit.limit,
                in_flight_at_send=permit.in_flight_at_send,
            )
        )

    def failed(self, watch: Watch, failure: Failure, permit: Permit) -> None:
        """End a request that failed."""
        self._end(watch)
        self._samples.append(
            Sample(
                outcome_of(failure.kind),
                rtt_s=failure.rtt_s,
                kind=failure.kind,
                epoch=permit.epoch,
                limit=permit.limit,
                in_flight_at_send=permit.in_flight_at_send,
                retry_after_s=failure.retry_after_s,
            )
        )

    def abandoned(self, watch: Watch) -> None:
        """End a request that was cancelled from here; it says nothing about the server."""
        self._end(watch)

    def take(self) -> Observation:
        """Return what an exchange tells; the gate adds what it knows of permits."""
        now = self._clock()
        samples, self._samples = tuple(self._samples), []
        first_tokens, self._first_tokens = tuple(self._first_tokens.values()), {}
        output, self.output_tokens = self.output_tokens, 0
        prefill, self._prefill_tokens = self._prefill_tokens, 0
        after_s = self._deadlines.after_s
        if now - self._scanned_at >= STALL_SCAN_S:
            self._scan_begun(now)
        return Observation(
            waiting=len(self._waiting),
            overdue=sum(now - watch.sent_at > after_s(bin_of(watch.prompt_tokens)) for watch in self._waiting),
            stalled=self._stalled,
            prefill_tokens=max(prefill, 0),
            output_tokens=max(output, 0),
            samples=samples,
            first_tokens=first_tokens,
        )

    def _end(self, watch: Watch) -> None:
        watch.is_over = True
        self._waiting.discard(watch)
        self._begun.discard(watch)

    def _scan_begun(self, now: float) -> None:
        self._scanned_at, self._stalled = now, 0
        for watch in self._begun:
            if watch.tokens_seen != watch.tokens_scanned:
                watch.tokens_scanned, watch.moved_at = watch.tokens_seen, now
            self._stalled += watch.is_stalled(now)
