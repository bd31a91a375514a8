"""Latency against in flight: enough answers a level, the knee where the rate stops growing, the first rejection."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from report.stored import attempt

from evalpipe.records import AttemptRecord
from evalpipe.report.latency import ENOUGH, curve_of
from evalpipe.store.schema import ATTEMPT_SCHEMA
from evalpipe.store.segments import to_table


def table(attempts: list[AttemptRecord]) -> pa.Table:
    return to_table(attempts, ATTEMPT_SCHEMA)


def slots(count: int, *, most: int, each: int = 40) -> list[AttemptRecord]:
    """Answers of a server that runs `count` at once, a second each: above that, latency grows with in flight."""
    rng = random.Random(0)
    pairs = [(n, max(n / count, 1.0)) for n in range(1, most + 1) for _ in range(each)]
    return [
        attempt(i, in_flight_at_send=n, rtt_s=seconds * rng.uniform(0.99, 1.01)) for i, (n, seconds) in enumerate(pairs)
    ]


def test_the_knee_is_where_more_in_flight_answer_no_faster():
    """A server of 64 slots, tried to 120: the knee within a level of it, the baseline a second."""
    curve = curve_of(table(slots(64, most=120)))

    assert curve is not None
    assert curve.knee == pytest.approx(64, abs=5)
    assert curve.baseline_s == pytest.approx(1.0, abs=0.02)
    assert len(curve.in_flight) <= 25
    assert (curve.p99_s >= curve.p50_s).all()


def test_there_is_no_knee_where_trying_ended():
    """Tried to 60 only, the rate still grew: what bound the run was the limit."""
    curve = curve_of(table(slots(64, most=60)))

    assert curve is not None
    assert curve.knee is None


def test_the_first_rejection_is_the_first_in_time():
    """Not the one with the fewest in flight; and a failure that is no rejection is none."""
    refused = [
        attempt(1000, "rate_limited", in_flight_at_send=30),
        attempt(900, "overloaded", in_flight_at_send=50),
        attempt(1, "timeout", in_flight_at_send=10),
    ]

    curve = curve_of(table([*slots(8, most=20), *refused]))

    assert curve is not None
    assert curve.first_rejection == 50


def test_one_level_is_a_curve_too():
    """A fixed limit has no slope to show, but a latency."""
    curve = curve_of(table([attempt(i) for i in range(ENOUGH)]))

    assert curve is not None
    assert (curve.in_flight.tolist(), curve.knee, curve.first_rejection) == ([8.0], None, None)


def test_too_few_answers_are_no_curve():
    """Nineteen answers have no P99; failed attempts are none."""
    assert curve_of(table([attempt(i) for i in range(ENOUGH - 1)] + [attempt(99, "timeout")])) is None
