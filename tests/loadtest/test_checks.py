"""What the client did wrong is found, and what it did right is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loadrows import SLO, answer, evenly

from evalpipe.loadtest.arrivals import Traffic, look_at, schedule
from evalpipe.loadtest.checks import Client, accounting_notes, client_faults
from evalpipe.loadtest.measures import Measures, measure
from evalpipe.loadtest.records import Window

GOOD = Traffic(count=600, rate_per_s=10, dispersion=1.0, ks_p=0.5, correlation=0.0)
OPEN = Client(planned=GOOD, sent=GOOD)


def row(late_s: float = 0.001) -> Measures:
    return measure(evenly(10, 60, lambda at: answer(at, late_s=late_s)), Window(0, 60), ended_at=62.0, slo=SLO)


def test_a_client_on_time_has_no_faults():
    """A millisecond late, a fifth of a core, gaps as drawn."""
    assert client_faults(row(), replace(OPEN, cpu_share=0.2, lag_p99_s=0.002)) == []


@pytest.mark.parametrize(
    ("late_s", "client", "word"),
    [
        (0.006, OPEN, "sent late"),
        (0.001, replace(OPEN, lag_p99_s=0.02), "event loop"),
        (0.001, replace(OPEN, cpu_share=0.71), "71 % of a core"),
        (0.001, replace(OPEN, sent=replace(GOOD, count=580)), "580 requests were sent where 600 were due"),
        (0.001, replace(OPEN, sent=replace(GOOD, ks_p=0.001)), "not those that were drawn"),
    ],
)
def test_each_fault_of_the_client_is_named(late_s: float, client: Client, word: str):
    """Lateness, loop lag, CPU, lost arrivals, gaps that changed on the way: one line each."""
    faults = client_faults(row(late_s), client)

    assert len(faults) == 1
    assert word in faults[0]


def test_an_unlucky_schedule_is_not_the_clients_fault():
    """One schedule in a hundred fails its own KS test; sent as drawn, it is right."""
    unlucky = replace(GOOD, ks_p=0.004)

    assert client_faults(row(), Client(planned=unlucky, sent=unlucky)) == []


def test_lateness_may_be_a_twentieth_of_a_slow_first_token():
    """Where the median TTFT is 2 s, 50 ms change nothing."""
    slow = evenly(10, 60, lambda at: answer(at, ttft_s=2.0, e2e_s=3.0, late_s=0.05))

    assert client_faults(measure(slow, Window(0, 60), ended_at=64.0, slo=SLO), OPEN) == []


def test_a_sender_that_wakes_seldom_is_seen():
    """Sending what is due each 200 ms: late, and no longer Poisson."""
    planned = schedule("poisson", rate_per_s=20, duration_s=60, seed=1)
    sent = [int(at * 5) / 5 + 0.2 for at in planned]
    requests = [answer(due, late_s=at - due) for due, at in zip(planned, sent, strict=True)]
    client = Client(planned=look_at(planned, rate_per_s=20, end=60), sent=look_at(sorted(sent), rate_per_s=20, end=60))

    faults = client_faults(measure(requests, Window(0, 60), ended_at=62.0, slo=SLO), client)

    assert [fault.split()[0] for fault in faults] == ["sent", "the"]


def test_littles_law_holds_for_a_steady_row():
    """10 requests/s of 1.05 s are 10.5 in flight: nothing to tell; with 30 in flight there is."""
    good = measure(evenly(10, 80), Window(10, 70), ended_at=82.0, slo=SLO)

    assert accounting_notes(good, is_stable=True) == []
    assert "Little's law: 30.0 in flight" in accounting_notes(replace(good, in_flight=30.0), is_stable=True)[0]
    assert accounting_notes(replace(good, in_flight=30.0), is_stable=False) == []


def test_more_answers_than_requests_are_told():
    """A window after a flood counts answers to requests from before it."""
    good = measure(evenly(10, 80), Window(10, 70), ended_at=82.0, slo=SLO)

    assert "more answers (900) than requests (600)" in accounting_notes(replace(good, completed=900), is_stable=True)[0]
