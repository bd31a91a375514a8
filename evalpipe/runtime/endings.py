"""How a run ends: exit codes, and the watch that gives up on an endpoint which answers nothing. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from evalpipe.config import EndpointConfig
from evalpipe.endpoint.failures import KEY_KINDS, TABLE
from evalpipe.errors import Failure, Paused
from evalpipe.runtime.firstitems import FIRST, FirstItems
from evalpipe.runtime.messages import PollReply

#: exit codes (DESIGN section 9)
COMPLETE, RESUMABLE, NO_KEY, NO_ENDPOINT, BUDGET = 0, 75, 77, 78, 79
UNHEARD_S = 5.0  # without a word of any worker that has work: they are away, which says nothing about the server
_OURS = frozenset({"storage", "internal"})  # not the endpoint's fault: the same command may go on later


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. why: one line for a person, "" when everything was done."""

    exit_code: int = COMPLETE
    why: str = ""


def ending_of(failure: Failure) -> Ending:
    """Return the exit code and the line for a failure that ends the run."""
    if failure.kind == "config":
        return Ending(2, failure.message)
    row = TABLE.get(failure.kind)
    if failure.kind in _OURS or (row is not None and issubclass(row.error, Paused)):
        return Ending(RESUMABLE, in_words(failure))
    return Ending(NO_KEY if failure.kind in KEY_KINDS else NO_ENDPOINT, in_words(failure))


def in_words(failure: Failure) -> str:
    """Say it in the words of the table, with the server's own behind them where they add something."""
    line = TABLE[failure.kind].line if failure.kind in TABLE else ""
    if not line or failure.message.startswith(line):
        return failure.message or failure.kind
    return f"{line} ({failure.message})" if failure.message else line


class EndpointWatch:
    """Says when to give up: soon before the first answer of the run, late after it (endpoint.max_outage_s).

    now: seconds, monotonic. A stopped clock (the driver was suspended) is the caller's matter: `forgive` the time.
    """

    def __init__(self, config: EndpointConfig, *, now: float, is_first_try: bool = True) -> None:
        """is_first_try: False where the items failed before, so that it is no news when the first of them all fail."""
        self._config = config
        self._first = FirstItems() if is_first_try else None
        self.sent_at: float | None = None  # when the first request was seen out
        self.has_success = False
        self._heard_at = now
        self._success_at = self._alive_at = self._failed_at = now
        self._seen: dict[str, tuple[int, int]] = {}  # worker process -> answers, signs of life
        self._failed: dict[str, Mapping[str, int]] = {}  # worker process -> items stored as failed, by kind
        self._last_failure: Failure | None = None

    def on_reply(self, process: str, reply: PollReply, *, now: float) -> None:
        if reply.in_flight + reply.queued > 0:  # a worker without work knows nothing of the server
            if now - self._heard_at > UNHEARD_S:
                self.forgive(now - self._heard_at)
            self._heard_at = now
        # a server that refuses in a millisecond is never seen with a request in flight
        if self.sent_at is None and (reply.in_flight + reply.counters.finished > 0 or reply.last_failure is not None):
            self.sent_at = self._success_at = self._alive_at = now
        answered, signs = self._seen.get(process, (0, 0))
        if reply.counters.answered > answered:
            self._success_at, self.has_success = now, True
        if reply.signs_of_life > signs:
            self._alive_at = now
        self._seen[process] = reply.counters.answered, reply.signs_of_life
        self._failed[process] = reply.counters.failures
        if reply.last_failure is not None and reply.last_failure != self._last_failure:
            self._last_failure, self._failed_at = reply.last_failure, now

    @property
    def is_open(self) -> bool:
        """Say whether more than the first few items may go: one was answered, or they failed for different reasons."""
        return self.has_success or sum(self._failures().values()) >= FIRST

    def verdict(self, *, now: float) -> Ending | None:
        """Return the ending when patience is over, None to go on."""
        if self.sent_at is None or now - self._heard_at > UNHEARD_S:
            return None
        if (kind := self._judge_first()) is not None:
            code = 2 if kind == "prompt" else NO_ENDPOINT  # of which the endpoint knows nothing
            return Ending(code, f"the first items all failed, so it is not they: {self._last_words(kind)}")
        if not self.has_success and self._is_silent(now):
            return Ending(NO_ENDPOINT, f"no answer within {self._config.first_success_s:g} s: {self._last_words()}")
        if now - self._success_at > self._config.max_outage_s:
            return Ending(RESUMABLE, f"no answer for {now - self._success_at:.0f} s: {self._last_words()}")
        return None

    def forgive(self, seconds: float) -> None:
        """Leave out time in which nobody looked."""
        self._success_at, self._alive_at = self._success_at + seconds, self._alive_at + seconds
        self._failed_at += seconds

    def _is_silent(self, now: float) -> bool:
        """Say whether nothing came for so long. Without streams a slow answer is silent: then failures must come."""
        patience_s = self._config.first_success_s
        if now - self._alive_at <= patience_s:
            return False
        return self._config.stream == "all" or now - self._failed_at <= patience_s

    def _judge_first(self) -> str | None:
        answered = sum(answered for answered, _ in self._seen.values())
        return self._first.judge(answered=answered, failures=self._failures()) if self._first is not None else None

    def _failures(self) -> Counter[str]:
        total = Counter[str]()
        for failures in self._failed.values():
            total.update(failures)
        return total

    def _last_words(self, kind: str | None = None) -> str:
        """Tell of the last failure. kind: of this kind only."""
        failure = self._last_failure
        if kind is not None and (failure is None or failure.kind != kind):
            failure = Failure(kind)
        if failure is None:
            return "the server takes requests and says nothing"
        return in_words(failure)
