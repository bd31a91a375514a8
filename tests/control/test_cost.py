"""The cost of an exchange, measured: a busy controller is asked less often, a fast one more often."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evalpipe.control.cost import EVERY, GUESS_S, LEAST_S, MOST_S, SHARE, ExchangeCost


def measured(cost: ExchangeCost, *, each_s: float, exchanges: int, from_s: float = 50.0) -> ExchangeCost:
    for count in range(exchanges + 1):
        cost.note(from_s + count * each_s)
    return cost


def test_before_it_is_measured_it_is_a_guess():
    """The process used 50 s before the first exchange: they are nobody's."""
    cost = measured(ExchangeCost(), each_s=0.002, exchanges=EVERY - 1)

    assert cost.seconds == GUESS_S
    assert cost.interval_s(256) == pytest.approx(256 * GUESS_S / 0.2)


@pytest.mark.parametrize("each_s", [0.0004, 0.001])
def test_the_interval_keeps_all_workers_below_their_share(each_s: float):
    """Whatever an exchange costs here: 256 workers that ask so often take a fifth of a core."""
    cost = measured(ExchangeCost(), each_s=each_s, exchanges=10 * EVERY)

    assert 256 / cost.interval_s(256) * each_s == pytest.approx(SHARE, rel=0.02)


@given(readings=st.lists(st.floats(0, 5), min_size=1, max_size=3 * EVERY))
def test_no_reading_makes_it_absurd(readings: list[float]):
    """CPU time in jumps, or none at all: the cost stays within what an exchange can cost."""
    cost, cpu_s = ExchangeCost(), 0.0
    for seconds in readings:
        cpu_s += seconds
        cost.note(cpu_s)

    assert LEAST_S <= cost.seconds <= MOST_S
