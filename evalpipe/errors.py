"""The one tree of errors. What to do follows from the class, never from the message text.

Messages say what was wrong, what was given and what would do. Never a secret, never a prompt body.
"""

from __future__ import annotations

from dataclasses import dataclass


class EvalPipeError(Exception):
    """Root of everything evalpipe raises on purpose."""


class ConfigError(EvalPipeError):
    """A setting, flag or file name of the user is wrong; raised before any work starts (exit 2)."""


class DataError(EvalPipeError):
    """The dataset cannot be used as it is: missing, unreadable, duplicate ids (exit 2)."""


class StateError(EvalPipeError):
    """A broken invariant of ours, or stored data that does not fit (exit 78)."""


class Resumable(EvalPipeError):
    """The run had to stop for a reason that passes; the same command goes on (exit 75)."""


class Fenced(Resumable):
    """Another driver owns this run; this one must stop without writing (exit 75)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one attempt did not yield an answer. Plain values only: it crosses process boundaries.

    kind: row of endpoint/failures.py, e.g. "rate_limited"; code: HTTP status or the provider's own code, "" if none;
    retry_after_s: seconds the server asked to wait, None when it did not; rtt_s: time the attempt took on the wire.
    """

    kind: str
    code: str = ""
    message: str = ""
    retry_after_s: float | None = None
    rtt_s: float = 0.0
    request_id: str = ""


class EndpointError(EvalPipeError):
    """An attempt failed. One of the four subclasses says what follows from it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind}: {failure.message}" if failure.message else failure.kind)
        self.failure = failure

    def __reduce__(self) -> tuple[type[EndpointError], tuple[Failure]]:
        return type(self), (self.failure,)


class Retryable(EndpointError):
    """Nothing is known to be wrong with the item: try again, it counts as an attempt."""


class ItemRefused(EndpointError):
    """This item will never succeed as it is: store it as a typed failure."""


class RunFatal(EndpointError):
    """No item can succeed (bad key, no such model, quota gone): stop the run in seconds."""


class Paused(EndpointError):
    """The server asks for less load: the law and the pacer act, the item's attempts are not spent."""
