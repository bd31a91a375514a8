"""What a worker sees of its own requests in flight, gathered into one Observation an exchange. Pure: no clock, no I/O.

A request is in one of two tables: waiting for its first token, or begun. An exchange looks at those that wait; those
that began are scanned twice a second, so that a token costs no more than counting it. One that is not streamed is in
neither: nothing is known of it until it ends. Real workers (runtime/observer.py) and virtual ones use the same code, so
that what is tuned in virtual time is as uneven as what a server's clients see.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from evalpipe.control.baseline import Deadlines, bin_of
from evalpipe.control.lease import Lease
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample

SAMPLED, ALL_UP_TO = 0.1, 16  # share of requests that are streamed, and in flight up to which all are
STALL_SCAN_S = 0.5
STALLED_S, STALLED_GAPS = 1.0, 20.0  # a stream that began is stalled after a second, or 20 of its usual gaps
SCALE_MEMORY = 20_000.0  # tokens: of some hundred answers, so that one odd answer moves the scale by a per cent


def is_in_sample(in_flight: int, rng: random.Random) -> bool:
    """Decide whether a request is streamed where a sample of them is. in_flight: of the whole cluster, it included.

    A tenth tells the same about the server at a tenth of the client's work; a tenth of a few tells nothing.
    """
    return in_flight <= ALL_UP_TO or rng.random() < SAMPLED


@dataclass(slots=True, eq=False)
class Stream:
    """One request in flight. prompt_tokens: as expected when it was sent.

    told: tokens so far, as guessed from the text that came. moved_at: the scan that last found more than the one
    before.
    """

    sent_at: float
    prompt_tokens: int
    is_streamed: bool = True
    first_at: float | None = None
    is_over: bool = False
    told: int = 0
    told_scanned: int = 0
    moved_at: float = 0.0

    def is_stalled(self, now: float) -> bool:
        """Silent for longer than its own pace accounts for. Call after a scan noted its tokens."""
        assert self.first_at is not None
        flowed_s = max(self.moved_at - STALL_SCAN_S - self.first_at, 0.0)  # at least: the last came within that scan
        gap_s = flowed_s / max(self.told, 1)
        return now - self.moved_at > max(STALLED_S, STALLED_GAPS * gap_s)


class TokenFlow:
    """Tokens as they come, guessed from their text and scaled to the server's counts of the answers that ended.

    Settling the difference at the end of each answer would be a lump, which looks like a jump of the server's speed.
    """

    def __init__(self) -> None:
        self._guessed = self._counted = 0.0
        self._new = 0
        self._left = 0.0  # not told yet; a fraction of a token stays for the next exchange

    def add(self, guess: int) -> None:
        self._new += guess

    def add_counted(self, tokens: int) -> None:
        """Add what nobody guessed before: an answer that came in one piece."""
        self._left += tokens

    def take(self) -> int:
        """Return the tokens since the last call."""
        scale = self._counted / self._guessed if self._guessed else 1.0
        self._left += self._new * scale
        whole = int(self._left)
        self._left, self._new = self._left - whole, 0
        return whole

    def learn(self, *, guessed: int, counted: int) -> None:
        """Take in an answer that ended; a server that counts nothing (0) teaches nothing."""
        if guessed > 0 and counted > 0:
            keep = max(1.0 - guessed / SCALE_MEMORY, 0.0)
            self._guessed, self._counted = keep * self._guessed + guessed, keep * self._counted + counted


class Streams:
    """Counts since the last exchange, and levels now. One per worker; `take` empties the counts."""

    def __init__(self, *, now: float) -> None:
        self._waiting: set[Stream] = set()
        self._begun: set[Stream] = set()
        self._unseen = 0
        self._deadlines = Deadlines()
        self._output, self._prefill = TokenFlow(), TokenFlow()
        self._samples: list[Sample] = []
        self._first_tokens: dict[int, FirstTokens] = {}
        self._stalled = 0
        self._scanned_at = self._taken_at = self._counted_at = now
        self._stream_s = 0.0  # until _counted_at

    @property
    def waiting(self) -> int:
        """Streams in flight without a first token."""
        return len(self._waiting)

    def renew(self, lease: Lease) -> None:
        """Take the deadlines of first tokens that came with a lease."""
        if lease.overdue != self._deadlines.table:
            self._deadlines = Deadlines(lease.overdue)

    def begin(self, stream: Stream) -> None:
        """A request goes out. The prompt of one that is not streamed counts now: nobody sees when it is read."""
        if stream.is_streamed:
            self._waiting.add(stream)
        else:
            self._unseen += 1
            self._prefill.add(stream.prompt_tokens)

    def on_first_token(self, stream: Stream, *, now: float) -> None:
        """The first text came; said again, or after the end, it means nothing."""
        if stream.first_at is not None or stream.is_over or not stream.is_streamed:
            return
        self._count(now)
        stream.first_at = stream.moved_at = now
        self._waiting.discard(stream)
        self._begun.add(stream)
        self._prefill.add(stream.prompt_tokens)
        key, seconds = bin_of(stream.prompt_tokens), now - stream.sent_at
        late = seconds > self._deadlines.after_s(key)
        old = self._first_tokens.get(key) or FirstTokens(key, 0, 0, seconds)
        self._first_tokens[key] = FirstTokens(key, old.count + 1, old.late + late, min(old.least_s, seconds))

    def on_tokens(self, stream: Stream, count: int) -> None:
        """Text came, about so many tokens of it."""
        stream.told += count
        self._output.add(count)

    def on_end(self, stream: Stream, sample: Sample | None, *, now: float) -> None:
        """A request ended, however it did. sample None: it was cancelled from here and says nothing about the server.

        An answer that came in one piece has no first token of its own: it counts as work, nothing more.
        """
        self._count(now)
        stream.is_over = True
        self._waiting.discard(stream)
        self._begun.discard(stream)
        self._unseen -= not stream.is_streamed
        if sample is None:
            return
        self._samples.append(sample)
        if sample.outcome is Outcome.OK:
            self._settle(stream, sample)

    def _settle(self, stream: Stream, sample: Sample) -> None:
        is_prompt_told = stream.prompt_tokens > 0 and (stream.first_at is not None or not stream.is_streamed)
        for flow, guess, counted in (
            (self._prefill, stream.prompt_tokens * is_prompt_told, sample.prompt_tokens),
            (self._output, stream.told, sample.output_tokens),
        ):
            if guess:
                flow.learn(guessed=guess, counted=counted)
            else:
                flow.add_counted(counted)

    def take(self, *, now: float) -> Observation:
        """Return what an exchange tells; whoever holds the permits adds what is in flight."""
        samples, self._samples = tuple(self._samples), []
        first_tokens, self._first_tokens = tuple(self._first_tokens.values()), {}
        if now - self._scanned_at >= STALL_SCAN_S:
            self._scan_begun(now)
        self._count(now)
        span_s, self._taken_at = now - self._taken_at, now
        stream_s, self._stream_s = max(self._stream_s - self._stalled * span_s, 0.0), 0.0
        return Observation(
            waiting=len(self._waiting),
            overdue=self._overdue(now),
            stalled=self._stalled,
            unseen=self._unseen,
            prefill_tokens=self._prefill.take(),
            output_tokens=self._output.take(),
            samples=samples,
            first_tokens=first_tokens,
            span_s=span_s,
            stream_s=stream_s,
        )

    def _count(self, now: float) -> None:
        self._stream_s += len(self._begun) * max(now - self._counted_at, 0.0)
        self._counted_at = max(now, self._counted_at)

    def _overdue(self, now: float) -> int:
        after_s = self._deadlines.after_s
        return sum(now - stream.sent_at > after_s(bin_of(stream.prompt_tokens)) for stream in self._waiting)

    def _scan_begun(self, now: float) -> None:
        self._scanned_at, self._stalled = now, 0
        for stream in self._begun:
            if stream.told != stream.told_scanned:
                stream.told_scanned, stream.moved_at = stream.told, now
            self._stalled += stream.is_stalled(now)
