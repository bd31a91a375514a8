"""A collapse told from answers that fail to come: quick where it is one, silent where chance explains it."""

from __future__ import annotations

import random

import pytest

from evalpipe.control.delivery import Delivery

RATE = 200.0  # units of work a second: twenty answers of ten


def steady(delivery: Delivery, *, begin: float, end: float, per_s: float = 20.0, rtt_s: float = 1.0) -> None:
    """Answers of ten units at even gaps."""
    count = round((end - begin) * per_s)
    for i in range(count):
        delivery.add(10.0, rtt_s, at=begin + (i + 1) / per_s)


def test_as_much_as_is_due_is_not_short():
    """Nor are three quarters of it."""
    full, less = Delivery(), Delivery()
    steady(full, begin=0.0, end=5.0)
    steady(less, begin=0.0, end=5.0, per_s=15.0)

    assert not full.is_short(RATE, now=5.0)
    assert not less.is_short(RATE, now=5.0)


def test_a_tenth_of_what_is_due_is_short_within_the_time_of_an_answer():
    """After a second of it, with answers that took a second."""
    delivery = Delivery()
    steady(delivery, begin=0.0, end=5.0)
    steady(delivery, begin=5.0, end=6.0, per_s=2.0)

    assert not delivery.is_short(RATE, now=5.2)
    assert delivery.is_short(RATE, now=6.0)


def test_answers_that_come_in_bursts_are_no_collapse():
    """Twenty at once each second: between two bursts nothing comes, and that is as it should be."""
    delivery = Delivery()
    for second in range(1, 6):
        for _ in range(20):
            delivery.add(10.0, 1.0, at=float(second))

    assert not any(delivery.is_short(RATE, now=5.0 + tenth / 10) for tenth in range(10))


@pytest.mark.parametrize("seed", range(5))
def test_chance_is_no_collapse(seed: int):
    """Answers of very unequal size at random times, asked a hundred times."""
    delivery, rng, now = Delivery(), random.Random(seed), 0.0
    for _ in range(400):
        now += rng.expovariate(20.0)
        delivery.add(rng.lognormvariate(1.8, 1.0), 2.0, at=now)
        if now > 5.0:
            assert not delivery.is_short(20.0 * 10.0, now=now)


def test_seven_answers_or_no_known_rate_say_nothing():
    """Too little to judge by."""
    delivery = Delivery()
    steady(delivery, begin=0.0, end=0.35)

    assert not delivery.is_short(RATE, now=60.0)
    steady(delivery, begin=0.35, end=5.0)
    assert not delivery.is_short(0.0, now=60.0)


def test_it_flows_again_after_five_answers_at_nearly_the_rate():
    """Counted from the first of six after the cut; four do not do, and slow ones do not."""
    delivery = Delivery()
    steady(delivery, begin=0.0, end=5.0)

    steady(delivery, begin=5.0, end=5.2)
    assert not delivery.is_back(RATE, since=5.0, now=5.2)
    steady(delivery, begin=5.2, end=5.35)
    assert delivery.is_back(RATE, since=5.0, now=5.35)
    steady(delivery, begin=5.35, end=10.35, per_s=2.0)
    assert not delivery.is_back(RATE, since=5.0, now=10.35)


def test_the_mean_latency_is_of_the_last_answers():
    """A second before any is known."""
    delivery = Delivery()

    assert delivery.rtt_s == 1.0
    steady(delivery, begin=0.0, end=10.0, rtt_s=3.0)
    assert delivery.rtt_s == pytest.approx(3.0)
