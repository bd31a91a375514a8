"""The interface of a simulated server model. One model, two faces: virtual time and HTTP.

A model is pure: it is told `now` (float seconds, any origin, never backwards), reads no clock, and its randomness comes
from a seed. Callers call `advance(now)` before they submit or cancel at the same `now`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

EventKind = Literal["first_token", "done", "preempted", "failed"]


@dataclass(frozen=True, slots=True)
class Job:
    """One request as the model sees it. Both token counts are at least 1.

    work: relative size, mean 1; only models of shared capacity (`cliff`) read it, the others count tokens.
    cached_tokens: of the prompt, those that a batching server has in its prefix cache; fewer than prompt_tokens.
    """

    job_id: int
    prompt_tokens: int
    output_tokens: int
    work: float = 1.0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a job was not taken, or not finished.

    status: HTTP, 0 for a connection that failed. retry_after_s: None when the server names no time. code: OpenAI's.
    """

    status: int
    retry_after_s: float | None
    code: str


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a job, and when (the model's own time, never later than the `now` of the advance).

    rejection: why, of one that failed.
    """

    kind: EventKind
    job_id: int
    at: float
    rejection: Rejection | None = None


class ServerModel(Protocol):
    """A server without sockets. Wider than our protocols should be: it is all that two faces need to know."""

    @property
    def in_flight(self) -> int:
        """Jobs taken and not finished: running + waiting."""

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def preemptions(self) -> int:
        """Preemptions since the start."""

    @property
    def tokens_emitted(self) -> int:
        """Output tokens since the start, those of cancelled jobs included."""

    @property
    def prefill_done(self) -> int:
        """Prompt tokens of all jobs that had a first token; a recomputed prompt counts once."""

    @property
    def kv_used(self) -> float:
        """Share of the KV memory in use, 0 to 1; 0 for a model without memory."""

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        """Take the job, or say why not."""

    def cancel(self, job_id: int, *, now: float) -> None:
        """Drop the job; no further event names it. Unknown or finished jobs are ignored."""

    def resize(self, share: float) -> None:
        """Go on with so large a share of the capacity that it was built with."""

    def next_event_at(self) -> float:
        """Return when `advance` is next worth calling (may bring no event); math.inf when nothing is due."""

    def advance(self, now: float) -> list[Event]:
        """Live through everything up to and including `now`; return the events in time order."""

    def tokens_of(self, job_id: int) -> int:
        """Return the output tokens of a job in flight as of the last advance; 0 when it is not in flight."""
