"""What follows from a failed attempt, and whether anything may be sent now: the worker's view of its endpoint. Pure.

The class of an error says what it means (endpoint/failures.py). Here it meets what else is known: is the endpoint gone
(breaker), is the key refused for good (key watch), how often has the item been tried, how many retries may be spent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from evalpipe.control.breaker import Breaker
from evalpipe.control.retry import RetryBudget, RetryPolicy
from evalpipe.endpoint.failures import TABLE
from evalpipe.errors import EndpointError, Failure, ItemRefused, Paused, Retryable, RunFatal
from evalpipe.runtime.keywatch import KeyWatch
from evalpipe.runtime.queue import Task

#: kinds that a server which is down, restarting or replaced by a page of its proxy answers with
GONE = frozenset({"connect_failed", "reset", "server_error", "timeout", "bad_body"})
#: nothing was sent, so no item is to blame
UNSENT = "connect_failed"
#: an item whose attempt timed out gets so many times the deadline at the next
PATIENCE = 2.0


class Action(Enum):
    STOP = "the run cannot go on"
    FAIL = "store the item as failed"
    AGAIN = "send it again"


@dataclass(frozen=True, slots=True)
class Verdict:
    """delay_s: of AGAIN, how long to wait before."""

    action: Action
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a send gets and its result brings back."""

    breaker: int
    key: int


def share_of_budget(*, workers: int) -> RetryBudget:
    """Return one worker's part of the run's retry budget: 20 % of its own requests, and 10 a second for all together.

    At least one retry a window each: the last items of a run must not wait for new ones to pay for theirs.
    """
    whole = RetryBudget()
    return RetryBudget(min_per_s=max(whole.min_per_s / workers, 1 / whole.window_s))


class Triage:
    """Ask before each send, tell of each result. `now`: seconds, monotonic, one process."""

    def __init__(self, *, retry: RetryPolicy, budget: RetryBudget, rng: random.Random) -> None:
        self._retry, self._budget, self._rng = retry, budget, rng
        self._breaker, self._key = Breaker(), KeyWatch()

    def can_send(self, *, now: float) -> bool:
        return self._breaker.can_send(now=now) and self._key.can_send(now=now)

    def retries(self, *, now: float) -> int:
        """Return how many retries the budget has left; with none they queue, and new items go."""
        return max(int(self._budget.balance(now=now)), 0)

    def deadline_s(self, task: Task, first_s: float) -> float:
        """Return the deadline of the next attempt; first_s: of one that is not after a timeout."""
        return first_s * PATIENCE if "timeout" in task.failures else first_s

    def on_send(self, task: Task, *, now: float) -> Ticket:
        if task.is_retry:
            self._budget.withdraw(now=now)
        elif task.tries == 0:
            self._budget.deposit(now=now)
        return Ticket(self._breaker.on_send(), self._key.on_send())

    def on_answer(self, ticket: Ticket, *, now: float) -> None:
        self._breaker.on_answer(ticket.breaker, now=now)
        self._key.on_answer(ticket.key)

    def on_failure(
        self, task: Task, error: EndpointError, ticket: Ticket, *, now: float, had_token: bool = False
    ) -> Verdict:
        """Judge one failed attempt; counts it against the task unless the item is not to blame.

        had_token: a part of the answer came, so the endpoint is there whatever happened then.
        """
        kind = error.failure.kind
        is_gone = kind in GONE and not had_token
        self._note_endpoint(task, kind, ticket, now=now, is_gone=is_gone)
        task.is_retry = isinstance(error, Retryable)  # a pause is the law's matter, which sees every rejection
        if kind == "auth":
            return Verdict(Action.STOP if self._key.on_refusal(ticket.key, now=now) else Action.AGAIN)
        if isinstance(error, RunFatal):
            return Verdict(Action.STOP)
        self._key.on_failure(ticket.key, now=now)
        is_spared = isinstance(error, Paused) or kind == UNSENT or (is_gone and self._breaker.is_open)
        if not is_spared:
            task.attempts += 1
            task.failures[kind] = task.failures.get(kind, 0) + 1
        if isinstance(error, ItemRefused) or (not is_spared and self._is_exhausted(task, kind)):
            return Verdict(Action.FAIL)
        return Verdict(Action.AGAIN, self._delay_s(task, error.failure, is_spared=is_spared))

    def _note_endpoint(self, task: Task, kind: str, ticket: Ticket, *, now: float, is_gone: bool) -> None:
        if not is_gone:
            self._breaker.on_answer(ticket.breaker, now=now)
            return
        # an item that failed before may be its own reason: at the end of a run only such are left
        is_evidence = kind == UNSENT or not task.failures
        self._breaker.on_failure(ticket.breaker, now=now, is_evidence=is_evidence)

    def _is_exhausted(self, task: Task, kind: str) -> bool:
        tries = TABLE[kind].tries
        return not self._retry.can_retry(task.attempts) or (tries is not None and task.failures[kind] >= tries)

    def _delay_s(self, task: Task, failure: Failure, *, is_spared: bool) -> float:
        if failure.kind == "reset" and task.attempts == 1 and not is_spared:
            return 0.0  # most often a keep-alive connection that the server had closed (FACTS)
        tries = task.tries if is_spared else task.attempts
        return self._retry.delay(tries, failure.retry_after_s, self._rng)
