"""RetryPolicy and RetryBudget: seeded, without a clock."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.control.retry import RetryBudget, RetryPolicy
from evalpipe.errors import ConfigError


@pytest.mark.parametrize(("attempt", "ceiling_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (7, 32.0), (8, 60.0), (10**9, 60.0)])
def test_the_jitter_is_full(attempt, ceiling_s):
    """Delays spread from about zero to base * 2**(attempt - 1), at most the cap."""
    policy, rng = RetryPolicy(), random.Random(1)

    delays = [policy.delay(attempt, None, rng) for _ in range(2000)]

    assert 0.0 <= min(delays) < 0.01 * ceiling_s
    assert 0.99 * ceiling_s < max(delays) <= ceiling_s


@pytest.mark.parametrize(
    ("asked_s", "low_s", "high_s"),
    [(0.0, 0.0, 0.5), (20.0, 20.0, 22.5), (89.0, 30.0, 33.5), (1e6, 30.0, 33.5), (-5.0, 0.0, 0.5)],
)
def test_retry_after_is_obeyed_with_a_little_jitter(asked_s, low_s, high_s):
    """Never earlier than asked, within a tenth and half a second later; more than 30 s is not waited for."""
    policy, rng = RetryPolicy(), random.Random(2)

    delays = [policy.delay(9, asked_s, rng) for _ in range(500)]

    assert low_s <= min(delays)
    assert max(delays) <= high_s


@given(attempt=st.integers(-5, 5000), asked_s=st.none() | st.floats(), seed=st.integers(0, 100))
def test_a_delay_is_a_number_whatever_the_server_says(attempt, asked_s, seed):
    """NaN and infinity in a header must not become a wait."""
    delay = RetryPolicy().delay(attempt, asked_s, random.Random(seed))

    assert 0.0 <= delay <= 330.5


def test_the_same_seed_gives_the_same_delays():
    """All randomness comes from the rng that is passed in."""
    policy = RetryPolicy()

    first, second = ([policy.delay(n, None, rng) for n in range(1, 6)] for rng in (random.Random(3), random.Random(3)))

    assert first == second


def test_attempts_are_counted_from_one():
    """Three attempts allow a retry after the first and the second."""
    policy = RetryPolicy(max_attempts=3)

    assert [policy.can_retry(attempt) for attempt in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    "settings", [{"max_attempts": 0}, {"base_s": 0.0}, {"cap_s": 0.1}, {"max_retry_after_s": -1.0}]
)
def test_impossible_policies_are_refused(settings):
    """The message names the setting."""
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RetryPolicy(**settings)


def spend(budget, *, now, wanted=10_000):
    """Withdraw until refused; return how many were granted."""
    for granted in range(wanted):
        if not budget.withdraw(now=now):
            return granted
    return wanted


def test_ten_a_second_are_free():
    """A run that has sent nothing yet may retry 100 times in ten seconds."""
    assert spend(RetryBudget(), now=5.0) == 100


def test_requests_pay_for_a_fifth_of_a_retry():
    """500 requests buy 100 retries beside the free ones."""
    budget = RetryBudget()

    for _ in range(500):
        budget.deposit(now=3.0)

    assert spend(budget, now=4.0) == 200


@pytest.mark.parametrize(("now", "granted"), [(9.9, 0), (10.0, 100)])
def test_what_was_spent_comes_back_after_the_window(now, granted):
    """Seconds 0 to 9 are the window of second 9; second 10 has left second 0 behind."""
    budget = RetryBudget()

    spend(budget, now=0.0)

    assert spend(budget, now=now) == granted


def test_requests_stop_paying_when_they_leave_the_window():
    """Retries they paid for still count: the balance may be negative for a while."""
    budget = RetryBudget(min_per_s=0.0)

    for _ in range(50):
        budget.deposit(now=0.0)
    granted = spend(budget, now=5.0)

    assert granted == 10
    assert budget.balance(now=10.0) == -10.0
    assert budget.balance(now=15.0) == 0.0


@given(steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), max_size=200))
def test_the_share_of_retries_holds_at_each_grant(steps):
    """When a retry is granted, the retries of the last ten seconds are within the formula."""
    budget, now, requests, retries = RetryBudget(min_per_s=0.5), 0.0, [], []

    for gap_s, is_request in steps:
        now += gap_s
        if is_request:
            budget.deposit(now=now)
            requests.append(now)
        elif budget.withdraw(now=now):
            retries.append(now)
            recent = [sum(int(at) > int(now) - 10 for at in times) for times in (requests, retries)]
            assert recent[1] <= 0.2 * recent[0] + 5.0 + 1e-6


@pytest.mark.parametrize("settings", [{"ratio": -0.1}, {"min_per_s": -1.0}, {"window_s": 0}])
def test_impossible_budgets_are_refused(settings):
    """The message names the setting."""
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RetryBudget(**settings)
