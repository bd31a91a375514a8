"""What a worker sees of its own requests, told by its endpoint: control/streams.py behind a clock.

Completions and failures become Samples here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from evalpipe.control.lease import Lease, Permit
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.streams import Stream, Streams
from evalpipe.endpoint.failures import outcome_of
from evalpipe.errors import Failure
from evalpipe.records import Completion


@dataclass(slots=True, eq=False)
class Watch:
    """One request in flight, told of by the endpoint as its stream arrives (endpoint.client.Progress)."""

    observer: Observer
    stream: Stream

    @property
    def tokens_seen(self) -> int:
        return self.stream.told

    def first_token(self) -> None:
        self.observer.on_first_token(self.stream)

    def tokens(self, count: int) -> None:
        self.observer.on_tokens(self.stream, count)


class Observer:
    """Counts since the last exchange, and levels now. One per worker; `take` empties the counts.

    clock: float seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.signs_of_life = 0  # tokens and answers so far; never falls
        self._clock = clock
        self._streams = Streams(now=clock())

    @property
    def waiting(self) -> int:
        """Streams in flight without a first token."""
        return self._streams.waiting

    def begin(self, prompt_tokens: int = 0, *, is_streamed: bool = True) -> Watch:
        """A request goes out. prompt_tokens: about how long its prompt is, 0 where nobody knows."""
        stream = Stream(self._clock(), prompt_tokens, is_streamed)
        self._streams.begin(stream)
        return Watch(self, stream)

    def renew(self, lease: Lease) -> None:
        """Take the deadlines of first tokens that came with a lease."""
        self._streams.renew(lease)

    def on_first_token(self, stream: Stream) -> None:
        self.signs_of_life += 1
        self._streams.on_first_token(stream, now=self._clock())

    def on_tokens(self, stream: Stream, count: int) -> None:
        self.signs_of_life += 1
        self._streams.on_tokens(stream, count)

    def answered(self, watch: Watch, completion: Completion, permit: Permit) -> None:
        """End a request that was answered."""
        self.signs_of_life += 1
        sample = Sample(
            Outcome.OK,
            rtt_s=completion.rtt_s,
            ttft_s=completion.ttft_s,
            prompt_tokens=completion.prompt_tokens,
            output_tokens=completion.output_tokens,
            epoch=permit.epoch,
            limit=permit.limit,
            in_flight_at_send=permit.in_flight_at_send,
        )
        self._streams.on_end(watch.stream, sample, now=self._clock())

    def failed(self, watch: Watch, failure: Failure, permit: Permit) -> None:
        """End a request that failed."""
        sample = Sample(
            outcome_of(failure.kind),
            rtt_s=failure.rtt_s,
            kind=failure.kind,
            epoch=permit.epoch,
            limit=permit.limit,
            in_flight_at_send=permit.in_flight_at_send,
            retry_after_s=failure.retry_after_s,
        )
        self._streams.on_end(watch.stream, sample, now=self._clock())

    def abandoned(self, watch: Watch) -> None:
        """End a request that was cancelled from here; it says nothing about the server."""
        self._streams.on_end(watch.stream, None, now=self._clock())

    def take(self) -> Observation:
        """Return what an exchange tells; the gate adds what it knows of permits."""
        return self._streams.take(now=self._clock())
