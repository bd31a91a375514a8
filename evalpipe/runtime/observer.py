"""What a worker sees of its own requests, gathered into one Observation an exchange."""

from __future__ import annotations

from dataclasses import dataclass

from evalpipe.control.lease import Permit
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.endpoint.failures import outcome_of
from evalpipe.errors import Failure
from evalpipe.records import Completion


@dataclass(slots=True)
class Watch:
    """One request in flight, told of by the endpoint as its stream arrives (endpoint.client.Progress)."""

    observer: Observer
    is_waiting: bool = True
    tokens_seen: int = 0

    def first_token(self) -> None:
        self.observer.signs_of_life += 1
        if self.is_waiting:
            self.is_waiting = False
            self.observer.waiting -= 1

    def tokens(self, count: int) -> None:
        self.tokens_seen += count
        self.observer.signs_of_life += 1
        self.observer.output_tokens += count


class Observer:
    """Counts since the last exchange, and levels now. One per worker; `take` empties the counts."""

    def __init__(self) -> None:
        self.waiting = 0
        self.signs_of_life = 0  # tokens and answers so far; never falls
        self.output_tokens = 0
        self._prefill_tokens = 0
        self._samples: list[Sample] = []

    def begin(self) -> Watch:
        self.waiting += 1
        return Watch(self)

    def answered(self, watch: Watch, completion: Completion, permit: Permit) -> None:
        """End a request that was answered; chunks are not tokens, so the server's count settles the difference."""
        watch.first_token()
        self.output_tokens += completion.output_tokens - watch.tokens_seen if completion.output_tokens else 0
        self._prefill_tokens += completion.prompt_tokens
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
        self._end_waiting(watch)
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

    def _end_waiting(self, watch: Watch) -> None:
        if watch.is_waiting:
            watch.is_waiting = False
            self.waiting -= 1

    def take(self) -> Observation:
        samples, self._samples = tuple(self._samples), []
        output, self.output_tokens = self.output_tokens, 0
        prefill, self._prefill_tokens = self._prefill_tokens, 0
        return Observation(waiting=self.waiting, prefill_tokens=prefill, output_tokens=max(output, 0), samples=samples)
