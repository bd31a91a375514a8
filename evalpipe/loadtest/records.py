"""What a load test keeps of each request, and of the server beside it. Values only.

Instants are seconds since the test began, on one clock. In closed loop nothing is scheduled: scheduled_at is sent_at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK = "ok"
UNFINISHED = "unfinished"  # in flight when the test stopped
#: Kinds of endpoint/failures.py that say nobody is there, and those by which a server says that it is full.
GONE_KINDS = frozenset({"connect_failed", "reset", "cut", "unreachable", "timeout"})
REFUSAL_KINDS = frozenset({"rate_limited", "overloaded"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its four stamps: scheduled, sent, first token, last byte.

    kind: "ok", "unfinished", or the kind of failure. first_at: None without a token. ended_at: None while unfinished.
    chunks_at: when each piece of text came, the first included; empty where that was not stamped. A chunk may hold
    several tokens. output_tokens: of the usage block; of an unfinished request those seen so far.
    """

    scheduled_at: float
    sent_at: float
    first_at: float | None
    ended_at: float | None
    kind: str = OK
    prompt_tokens: int = 0
    output_tokens: int = 0
    chunks_at: Sequence[float] = ()

    @property
    def is_ok(self) -> bool:
        return self.kind == OK

    @property
    def is_error(self) -> bool:
        return self.kind not in (OK, UNFINISHED)

    @property
    def lateness_s(self) -> float:
        return self.sent_at - self.scheduled_at


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The server's own counters at one instant. preemptions: since it started. None where it has no such."""

    at: float
    running: float
    waiting: float
    preemptions: float | None = None
    kv_used: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """One second of a test, for the timeline of a collapse. preemptions: in it. kv_used: 0 to 1, None: not told."""

    at: float
    tokens_per_s: float
    running: float
    waiting: float
    preemptions: float
    kv_used: float | None


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What came of a test. requests: in order of sending. sent_until: where sending ended.

    ended_at: when nothing more was awaited; ages of unfinished requests count to it. is_flooded: the bound on requests
    in flight ended it.
    """

    requests: Sequence[Request]
    samples: Sequence[ServerSample]
    sent_until: float
    ended_at: float
    is_flooded: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a test that is measured: latencies of requests scheduled in [start, end), rates of what came then."""

    start: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.start

    def holds(self, at: float) -> bool:
        return self.start <= at < self.end

    def overlap_s(self, begin: float, end: float) -> float:
        """Return how much of [begin, end] lies inside."""
        return max(min(end, self.end) - max(begin, self.start), 0.0)
