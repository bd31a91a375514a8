"""One word a row, by one table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loadrows import SLO, answer, evenly

from evalpipe.loadtest.measures import Measures, ServerSide, measure
from evalpipe.loadtest.records import Window
from evalpipe.loadtest.verdict import Verdict, judge

STEADY = measure(evenly(10, 80), Window(10, 70), ended_at=82.0, slo=SLO)
QUIET = replace(STEADY, in_flight=0.4)
SLOW = replace(STEADY, bad=5)
REFUSED = replace(STEADY, errors={"rate_limited": 30})
GONE = replace(STEADY, errors={"connect_failed": 350, "reset": 20})
THRASHING = replace(STEADY, server=ServerSide(preemptions=100))


@pytest.mark.parametrize(
    ("row", "given", "word"),
    [
        (STEADY, {}, "steady"),
        (QUIET, {}, "idle"),
        (SLOW, {}, "near knee"),
        (STEADY, {"is_stable": False}, "overloaded"),
        (STEADY, {"is_flooded": True}, "overloaded"),
        (REFUSED, {}, "overloaded"),
        (STEADY, {"is_stable": False, "best_tokens_per_s": 1000.0}, "overloaded"),
        (STEADY, {"is_stable": False, "best_tokens_per_s": 3000.0}, "collapse"),
        (STEADY, {"best_tokens_per_s": 3000.0}, "steady"),
        (THRASHING, {"is_stable": False}, "collapse"),
        (THRASHING, {}, "steady"),
        (GONE, {}, "down"),
        (replace(STEADY, completed=0), {"is_flooded": True, "is_client_bad": True}, "down"),
        (STEADY, {"is_client_bad": True}, "invalid: client"),
        (GONE, {"is_client_bad": True}, "down"),
        (STEADY, {"is_client_bad": True, "is_stable": False}, "invalid: client"),
    ],
)
def test_verdicts(row: Measures, given: dict[str, float], word: str):
    """A dead server is down whoever sent; a late client makes any other row worthless."""
    settings = {"is_client_bad": False, "is_stable": True, **given}

    assert judge(row, slo=SLO, **settings) == word


def test_what_was_not_carried_is_no_capacity():
    """Overloaded, collapsed and down rows are failures of the server; an invalid one says nothing of it."""
    assert {word for word in Verdict if word.is_over} == {Verdict.OVERLOADED, Verdict.COLLAPSE, Verdict.DOWN}


def test_an_empty_row_is_idle():
    """No request at all: nothing is wrong with the server."""
    empty = measure([answer(500.0)], Window(10, 70), ended_at=600.0, slo=SLO)

    assert judge(empty, slo=SLO, is_client_bad=False, is_stable=True) is Verdict.IDLE
