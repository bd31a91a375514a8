"""What control sees: a Sample for each finished attempt, an Observation for each exchange.

Durations and counts only, no instants: those of two hosts are not comparable. Waiting for a permit, backing off and
waiting for a connection are never inside a latency.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from evalpipe.control.quota import Told
from evalpipe.records import Packed


class Outcome(StrEnum):
    """What an attempt teaches about load."""

    OK = "ok"  # its latency is a measurement
    IGNORED = "ignored"  # nothing: the item's own fault, a lone reset, a cancelled send
    DROPPED = "dropped"  # overload: 429, 503, 529


@dataclass(frozen=True, slots=True)
class Sample(Packed):
    """One finished attempt (never a retry sequence).

    kind: "ok" or the failure's kind. rtt_s, ttft_s: seconds from the send; ttft_s None when not streamed.
    epoch, limit: of the permit it was sent with. in_flight_at_send: cluster-wide, itself included.
    """

    outcome: Outcome
    rtt_s: float
    kind: str = "ok"
    ttft_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    epoch: int = 0
    limit: int = 0
    in_flight_at_send: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class FirstTokens(Packed):
    """First tokens that came since the last exchange, to prompts of one size.

    bin: floor(log2 prompt tokens). count: how many came; late: of those, past their baseline. least_s: the soonest.
    """

    bin: int
    count: int
    late: int
    least_s: float


@dataclass(frozen=True, slots=True)
class Observation(Packed):
    """What one exchange tells; or, merged, what all workers told since the last decision.

    in_flight: requests out now. in_flight_peak: most that were out since the last exchange.
    waiting: of those in flight, streams without a first token yet. overdue: of those waiting, the ones past their
    baseline. stalled: streams that began and went silent. *_tokens: counted since the last exchange; a prompt counts
    when its first token comes. first_tokens: since the last exchange, by size of the prompt. told: what responses said
    of a quota since the last exchange, the newest of each worker. unseen: of those in flight, the ones that are not
    streamed: they are none of the above, their prompts count when they are sent, their answers when they end.
    span_s: seconds that the counts cover, merged: on average over the workers; 0 where nobody measured it. stream_s:
    seconds that streams were being answered meanwhile, all of them together.
    """

    in_flight: int = 0
    in_flight_peak: int = 0
    waiting: int = 0
    overdue: int = 0
    stalled: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    samples: tuple[Sample, ...] = ()
    first_tokens: tuple[FirstTokens, ...] = ()
    told: tuple[Told, ...] = ()
    unseen: int = 0
    span_s: float = 0.0
    stream_s: float = 0.0


def merge(observations: Iterable[Observation]) -> Observation:
    """Add up the observations of all workers into one for the cluster.

    The sum of the peaks is an upper bound of the cluster's peak; laws use it only to ask whether the limit binds.
    """
    every = list(observations)
    return Observation(
        in_flight=sum(o.in_flight for o in every),
        in_flight_peak=sum(max(o.in_flight_peak, o.in_flight) for o in every),
        waiting=sum(o.waiting for o in every),
        overdue=sum(o.overdue for o in every),
        stalled=sum(o.stalled for o in every),
        prefill_tokens=sum(o.prefill_tokens for o in every),
        output_tokens=sum(o.output_tokens for o in every),
        samples=tuple(s for o in every for s in o.samples),
        first_tokens=tuple(f for o in every for f in o.first_tokens),
        told=tuple(t for o in every for t in o.told),
        unseen=sum(o.unseen for o in every),
        span_s=sum(o.span_s for o in every) / max(len(every), 1),
        stream_s=sum(o.stream_s for o in every),
    )
