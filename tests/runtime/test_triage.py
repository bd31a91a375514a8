"""What a failed attempt costs and what follows: one table, and what an outage changes in it."""

from __future__ import annotations

import random

import pytest

from evalpipe.control.breaker import OPEN_AFTER
from evalpipe.control.retry import RetryBudget, RetryPolicy
from evalpipe.endpoint.failures import TABLE, make
from evalpipe.errors import Retryable
from evalpipe.records import Example, WorkItem
from evalpipe.runtime.queue import Task
from evalpipe.runtime.triage import GONE, UNSENT, Action, Triage, share_of_budget

POLICY = RetryPolicy(max_attempts=6)


def triage(budget: RetryBudget | None = None) -> Triage:
    return Triage(retry=POLICY, budget=budget or RetryBudget(), rng=random.Random(7))


def task(index: int = 0) -> Task:
    return Task(WorkItem(Example(index, f"i{index}", "", None, {})), ready_at=0.0)


def fail(desk: Triage, one: Task, kind: str, *, now: float = 0.0, had_token: bool = False, **told: float):
    ticket = desk.on_send(one, now=now)
    one.tries += 1
    return desk.on_failure(one, make(kind, **told), ticket, now=now, had_token=had_token)


def out(desk: Triage) -> Triage:
    """An endpoint that is gone: eight items could not connect."""
    for index in range(OPEN_AFTER):
        fail(desk, task(index), "connect_failed")
    return desk


@pytest.mark.parametrize(
    ("kind", "action", "attempts"),
    [
        ("quota", Action.STOP, 0),
        ("model_not_found", Action.STOP, 0),
        ("redirected", Action.STOP, 0),
        ("auth", Action.AGAIN, 0),
        ("rate_limited", Action.AGAIN, 0),
        ("overloaded", Action.AGAIN, 0),
        ("bad_request", Action.FAIL, 1),
        ("too_long", Action.FAIL, 1),
        ("filtered", Action.FAIL, 1),
        ("oversize", Action.FAIL, 1),
        ("server_error", Action.AGAIN, 1),
        ("try_again", Action.AGAIN, 1),
        ("connect_failed", Action.AGAIN, 0),
        ("reset", Action.AGAIN, 1),
        ("cut", Action.AGAIN, 1),
        ("timeout", Action.AGAIN, 1),
        ("bad_body", Action.AGAIN, 1),
        ("no_answer", Action.AGAIN, 1),
        ("no_finish", Action.AGAIN, 1),
        ("unexpected", Action.AGAIN, 1),
    ],
)
def test_a_first_failure_has_its_consequence_and_its_price(kind: str, action: Action, attempts: int):
    """Key, quota and pauses cost an item nothing; what the server may mend is tried again."""
    one = task()

    verdict = fail(triage(), one, kind)

    assert (verdict.action, one.attempts) == (action, attempts)


@pytest.mark.parametrize("kind", [kind for kind, row in TABLE.items() if row.error is Retryable and kind != UNSENT])
def test_a_failure_that_lasts_ends_after_as_many_tries_as_its_row_says(kind: str):
    """Two for a request that hangs, three without an answer in it, else six; another failure counts for the six."""
    desk, one, said = triage(), task(), []

    fail(desk, one, "try_again")
    while not said or said[-1] is Action.AGAIN:
        said.append(fail(desk, one, kind, had_token=True).action)

    assert len(said) == {"timeout": 2, "no_answer": 3}.get(kind, POLICY.max_attempts - 1)
    assert said[-1] is Action.FAIL


def test_a_lone_reset_is_tried_again_at_once():
    """The next one waits: two resets of one item are no closed keep-alive connection."""
    desk, one = triage(), task()

    first, second = fail(desk, one, "reset"), fail(desk, one, "reset")

    assert first.delay_s == 0.0
    assert 0.0 < second.delay_s <= 1.0


def test_the_wait_that_the_server_asks_for_is_kept():
    """Retry-After rules over the backoff."""
    assert 9.0 <= fail(triage(), task(), "rate_limited", retry_after_s=9.0).delay_s < 11.0


def test_after_a_timeout_an_item_gets_twice_the_time():
    """Only after its own timeout, not after another failure."""
    desk, slow, other = triage(), task(0), task(1)
    fail(desk, slow, "timeout", had_token=True)
    fail(desk, other, "cut")

    assert [desk.deadline_s(one, 100.0) for one in (slow, other, task(2))] == [200.0, 100.0, 100.0]


@pytest.mark.parametrize("kind", sorted(GONE))
def test_in_an_outage_no_attempt_is_spent(kind: str):
    """A server that restarts must not turn what is left of a dataset into failures."""
    desk, one = out(triage()), task()

    verdict = fail(desk, one, kind, now=1.0)

    assert (verdict.action, one.attempts, one.failures) == (Action.AGAIN, 0, {})
    assert not desk.can_send(now=1.1)


@pytest.mark.parametrize("kind", ["bad_request", "rate_limited", "no_answer", "cut", "try_again"])
def test_what_a_live_server_says_is_no_outage(kind: str):
    """Refusals and bad answers come from a server that is there."""
    desk = triage()

    for index in range(100):
        fail(desk, task(index), kind)

    assert desk.can_send(now=0.0)


def test_a_failure_after_the_first_token_is_no_outage():
    """Streams that break in the middle cost their items an attempt each, and end as typed failures."""
    desk, tasks = triage(), [task(index) for index in range(20)]

    for one in tasks:
        fail(desk, one, "server_error", had_token=True)

    assert desk.can_send(now=0.0)
    assert {one.attempts for one in tasks} == {1}


def test_the_last_items_that_always_fail_are_no_outage():
    """Two poisoned items at the end of a run used to look like a server that is gone, and the run never ended."""
    desk, tasks, said = triage(), [task(0), task(1)], []

    for now in range(6):
        said += [fail(desk, one, "server_error", now=float(now)).action for one in tasks]

    assert said[-2:] == [Action.FAIL, Action.FAIL]


def test_a_connection_that_fails_is_never_the_item_s_fault():
    """No item makes a port refuse: even the last one waits for the server, as long as the driver lets it."""
    desk, one = triage(), task()

    said = [fail(desk, one, "connect_failed", now=10.0 * now).action for now in range(20)]

    assert set(said) == {Action.AGAIN}
    assert not desk.can_send(now=190.0)


def test_a_refused_key_stops_the_run_after_three():
    """Before any answer, one after another; the items are not touched."""
    desk, tasks = triage(), [task(index) for index in range(3)]

    said = [fail(desk, one, "auth").action for one in tasks]

    assert said == [Action.AGAIN, Action.AGAIN, Action.STOP]
    assert {one.attempts for one in tasks} == {0}


def test_a_key_that_worked_is_tried_again_before_the_run_ends():
    """Sends pause at once and a probe may go a second later."""
    desk, one = triage(), task()
    desk.on_answer(desk.on_send(one, now=0.0), now=0.0)

    fail(desk, one, "auth", now=5.0)

    assert (desk.can_send(now=5.9), desk.can_send(now=6.0)) == (False, True)


def test_the_budget_counts_retries_and_not_pauses():
    """First tries pay, retries spend, what the server asked to send later costs nothing."""
    desk, again, paused = triage(RetryBudget(ratio=0.5, min_per_s=0.0)), task(1), task(2)

    for index in range(10):
        desk.on_send(task(index), now=0.0)
    before = desk.retries(now=0.0)
    fail(desk, again, "cut")
    fail(desk, paused, "overloaded")
    middle = desk.retries(now=0.0)
    fail(desk, again, "cut")
    fail(desk, paused, "overloaded")

    assert (before, middle, desk.retries(now=0.0)) == (5, 6, 5)


@pytest.mark.parametrize(("workers", "retries"), [(1, 100), (4, 25), (100, 1), (5_000, 1)])
def test_the_budget_of_a_run_is_shared_out(workers: int, retries: int):
    """Ten a second for all workers together, but never less than one in ten seconds each."""
    assert int(share_of_budget(workers=workers).balance(now=0.0)) == retries
