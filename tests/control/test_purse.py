"""Allowances: never more in any span than the rate brings in and what may gather, whatever is asked when."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evalpipe.control.purse import Allowance, Purse

STEPS = st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), min_size=1, max_size=40)


def purse(*, requests: float | None = None, tokens: float | None = None, left: float = 0.0) -> Purse:
    made = Purse()
    made.bound(requests=requests, tokens=tokens, left=left, cost=100.0)
    return made


def test_a_second_of_the_rate_gathers_and_no_more():
    """10 a second, nothing spent for an hour: 10 may go at once, then one each tenth of a second."""
    allowance = Allowance(10.0, left=0.0)
    allowance.accrue(now=0.0)
    allowance.accrue(now=3600.0)
    allowance.spend(10)
    gathered = allowance.left
    allowance.accrue(now=3600.1)

    assert (gathered, allowance.left) == (0.0, pytest.approx(1.0))


def test_one_request_gathers_however_low_the_rate():
    """Three a minute: after 20 s one may go; it would never do if only a second's worth gathered."""
    slow = purse(requests=3 / 60)

    ready = [slow.ready(lent=0, in_flight=0, cost=1.0, now=now) for now in (0.0, 19.9, 20.1, 400.0)]

    assert [math.floor(each) for each in ready] == [0, 0, 1, 1]


@given(rate=st.floats(0.02, 200), steps=STEPS)
def test_no_span_sees_more_than_rate_and_burst(rate: float, steps: list[tuple[float, int]]):
    """Between any two instants at most rate * seconds + max(rate, 1) go, for takers who take all that is ready."""
    allowed, now, taken = purse(requests=rate, left=1.0), 0.0, [(0.0, 0)]
    for seconds, wanted in steps:
        now += seconds
        count = min(wanted, math.floor(allowed.ready(lent=0, in_flight=0, cost=1.0, now=now)))
        allowed.begin(count, now=now)
        taken.append((now, count))

    for first in range(len(taken)):
        for last in range(first, len(taken)):
            seconds = taken[last][0] - taken[first][0]
            assert sum(count for _, count in taken[first : last + 1]) <= rate * seconds + max(rate, 1.0) + 1e-6


def test_what_is_lent_is_not_lent_twice():
    """Credits that are out count as spent until their worker has told."""
    allowed = purse(requests=10.0)
    allowed.ready(lent=0, in_flight=0, cost=1.0, now=0.0)

    assert allowed.ready(lent=4, in_flight=0, cost=1.0, now=1.0) == pytest.approx(6.0)


def test_tokens_are_set_aside_until_they_were_counted():
    """1,000 tokens gathered, 100 a request, 7 out: 3 more may begin; a dear answer is paid by the others."""
    allowed = purse(tokens=1000.0)
    allowed.ready(lent=0, in_flight=0, cost=100.0, now=0.0)
    before = allowed.ready(lent=2, in_flight=5, cost=100.0, now=1.0)
    allowed.finish(400.0)
    after = allowed.ready(lent=2, in_flight=4, cost=100.0, now=1.0)

    assert (before, after) == (pytest.approx(3.0), pytest.approx(0.0))


def test_a_request_larger_than_what_gathers_goes_alone():
    """600 tokens a minute, a request takes 1,000: it goes when nothing else is out, and leaves a debt."""
    allowed = purse(tokens=10.0)
    allowed.ready(lent=0, in_flight=0, cost=1000.0, now=0.0)

    assert [
        math.floor(allowed.ready(lent=0, in_flight=in_flight, cost=1000.0, now=now))
        for now, in_flight in ((99.0, 0), (100.0, 0), (100.0, 1))
    ] == [0, 1, 0]


def test_no_bound_is_infinite():
    """A purse that was told nothing lets everything begin."""
    assert (Purse().ready(lent=9, in_flight=9, cost=1.0, now=0.0), Purse().rate(cost=1.0)) == (math.inf, None)
