"""The last seconds as a law sees them: a Beat for each tick, and sums over the beats of a span.

Counts only, no latencies: what waits, what is stuck, what flows. They are true at the instant they are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from evalpipe.control.observation import Observation, Outcome

#: Kinds of failure that say the server, not the item, is ill. Rejections are told apart by their outcome.
ILL = frozenset({"server_error", "connect_failed", "reset", "cut", "timeout", "unreachable"})


@dataclass(frozen=True, slots=True)
class Beat:
    """One tick. in_flight, waiting, stuck, stalled: at its end. per_seen: requests in flight for each that is streamed;
    what is known of those is taken for all.

    peak: most that were out during it. stuck: overdue first tokens and stalled streams. begun: first tokens that came;
    late: of those, after they were overdue. tokens, prefill: output and prompt tokens that came in flow_s seconds of
    the whole cluster: reports of workers do not end with the tick, and while no stream was answered none could come.
    streams: that were being answered meanwhile, on average. answered, ill: attempts that ended well; that failed by the
    server's fault or were rejected.
    """

    seconds: float
    flow_s: float
    in_flight: int
    peak: int
    waiting: float
    stuck: float
    stalled: float
    begun: float
    late: float
    tokens: float
    prefill: int
    streams: float
    answered: int
    ill: int
    per_seen: float = 1.0

    @property
    def is_silent(self) -> bool:
        return self.tokens == 0 and self.begun == 0 and self.answered == 0


def beat_of(observations: Sequence[Observation], *, seconds: float) -> Beat:
    """Fold what came since the last beat (at least one observation) into one: flows add up, the last levels hold."""
    last = observations[-1]
    first_tokens = [first for o in observations for first in o.first_tokens]
    samples = [sample for o in observations for sample in o.samples]
    per_seen = last.in_flight / max(last.in_flight - last.unseen, 1) if last.unseen else 1.0
    in_one_piece = sum(s.output_tokens for s in samples if s.ttft_s is None) if last.unseen else 0
    flow_s = sum(o.span_s for o in observations)
    stream_s = sum(o.stream_s for o in observations)
    if flow_s <= 0:  # nobody measured it: what runs now ran all the tick
        flow_s, stream_s = seconds, seconds * (last.in_flight - last.unseen - last.waiting - last.stalled)
    streams = stream_s / flow_s * per_seen if flow_s > 0 else 0.0
    return Beat(
        seconds=seconds,
        flow_s=flow_s * min(streams, 1.0),
        in_flight=last.in_flight,
        peak=max(max(o.in_flight_peak, o.in_flight) for o in observations),
        waiting=last.waiting * per_seen,
        stuck=(last.overdue + last.stalled) * per_seen,
        stalled=last.stalled * per_seen,
        begun=sum(first.count for first in first_tokens) * per_seen,
        late=sum(first.late for first in first_tokens) * per_seen,
        tokens=max(sum(o.output_tokens for o in observations) - in_one_piece, 0) * per_seen,
        prefill=sum(o.prefill_tokens for o in observations),
        streams=max(streams, 1.0),
        answered=sum(sample.outcome is Outcome.OK for sample in samples),
        ill=sum(sample.outcome is Outcome.DROPPED or sample.kind in ILL for sample in samples),
        per_seen=per_seen,
    )


class Window:
    """The beats of the last span_s seconds, oldest first, and never fewer than `least` of them."""

    def __init__(self, span_s: float, *, least: int = 1) -> None:
        self.span_s, self.least = span_s, least
        self.seconds = 0.0
        self._beats: deque[Beat] = deque()

    def __iter__(self) -> Iterator[Beat]:
        return iter(self._beats)

    def add(self, beat: Beat) -> None:
        self._beats.append(beat)
        self.seconds += beat.seconds
        # ticks of 0.1 s do not add up exactly
        while len(self._beats) > self.least and self.seconds - self._beats[0].seconds >= self.span_s * 0.999:
            self.seconds -= self._beats.popleft().seconds

    def clear(self) -> None:
        self._beats.clear()
        self.seconds = 0.0

    @property
    def is_full(self) -> bool:
        return self.seconds >= self.span_s * 0.999 and len(self._beats) >= self.least

    @property
    def in_flight(self) -> float:
        return _mean(((beat.in_flight, beat.seconds) for beat in self._beats), self.seconds)

    @property
    def stuck(self) -> float:
        return _mean(((beat.stuck, beat.seconds) for beat in self._beats), self.seconds)

    @property
    def least_stuck(self) -> float:
        """Least that was stuck at any tick: a burst empties in between, a standing queue does not."""
        return min((beat.stuck for beat in self._beats), default=0)

    @property
    def is_sampled(self) -> bool:
        return any(beat.per_seen > 1.0 for beat in self._beats)

    @property
    def least_seen_stuck(self) -> float:
        """The same, of streams that were seen so, not of all that they stand for."""
        return min((beat.stuck / beat.per_seen for beat in self._beats), default=0.0)

    @property
    def is_growing(self) -> bool:
        """More in flight than when the span began."""
        return len(self._beats) > 1 and self._beats[-1].in_flight > self._beats[0].in_flight

    @property
    def on_time_share(self) -> float | None:
        """Share of first tokens that came before they were overdue; None below eight of them."""
        begun = sum(beat.begun for beat in self._beats)
        seen = sum(beat.begun / beat.per_seen for beat in self._beats)
        return 1.0 - sum(beat.late for beat in self._beats) / begun if seen >= 8 else None

    @property
    def ill_share(self) -> float:
        """Share of attempts that ended ill; 0 below three of them."""
        ill = sum(beat.ill for beat in self._beats)
        return ill / (ill + sum(beat.answered for beat in self._beats)) if ill >= 3 else 0.0


def _mean(values: Iterable[tuple[float, float]], seconds: float) -> float:
    return sum(value * weight for value, weight in values) / seconds if seconds > 0 else 0.0
