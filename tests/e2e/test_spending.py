"""A run that may spend so much stops there, keeps what it paid for, and goes on with more."""

from __future__ import annotations

import pytest
from witness import check_run

from evalpipe.runtime.endings import BUDGET

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TOKENS = 15_000


def test_a_spent_budget_stops_a_run_and_a_larger_one_goes_on(run_it):
    """What is in flight at that moment is finished and kept; the second start pays for no item again."""
    first = run_it(limit=200, control__law="fixed", control__start=4, budget__tokens=TOKENS)
    summary, table = first.summary, first.table()
    spent = sum(table["prompt_tokens"].to_pylist()) + sum(table["output_tokens"].to_pylist())

    second = run_it(limit=200, budget__tokens=100 * TOKENS)
    found = check_run(second.url)

    assert (first.exit_code, summary["bound_by"]) == (BUDGET, "budget")
    assert "a larger budget.tokens goes on from here" in summary["why"]
    assert TOKENS <= spent < 2 * TOKENS
    assert (second.exit_code, found.answered, found.paid_twice) == (0, 200, 0)
    assert found.is_clean
