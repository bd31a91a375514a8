"""The closing text: scores, counts, speed, what bound it, and how to go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from store.store_rows import make_result

from evalpipe.report.ending import ending, items_line, speed_line
from evalpipe.report.summary import summarise
from evalpipe.store.schema import RESULT_SCHEMA
from evalpipe.store.segments import to_table

SPEED = {
    "rate": {"elapsed_s": 181.4, "items_per_s": 27.56, "output_tokens_per_s": 6789.4, "retries": 3},
    "limit": {"law": "auto", "final": 63.9, "mean": 51.2, "mean_in_flight": 47.6, "gradient": 0.8349},
    "bound_by": "server",
}


def closing(*, expected: int = 3, **body: Any) -> str:
    """Of a run with a right, a truncated and a failed result."""
    rows = [make_result(0), replace(make_result(1), status="truncated"), make_result(2, failed=True)]
    summary = summarise(to_table(rows, RESULT_SCHEMA), expected_items=expected)
    return ending({"url": "/runs/r", "why": "", "exit_code": 0, **summary.to_dict(), **body}, summary)


def test_a_complete_run_says_where_everything_is():
    """Counts that add up, the speed, the bound, the folder; no reason and nothing to go on with."""
    lines = closing(**SPEED).splitlines()

    assert "3 items: 2 answered, 1 failed, 0 missing, 1 truncated" in lines
    assert "bound by: server" in lines
    assert lines[-1] == "results: /runs/r/parts/  summary: /runs/r/summary.json  page: /runs/r/report.html"


def test_an_ended_run_says_why_and_how_to_go_on():
    """The exit code and the command that continues it are the last lines."""
    lines = closing(expected=10, why="stopped by a signal", exit_code=143).splitlines()

    assert lines[-2:] == [
        "why it ended (exit 143): stopped by a signal",
        "go on with: evalpipe resume /runs/r",
    ]


def test_a_run_that_sent_nothing_claims_no_speed():
    """A table printed from what is stored has no rate, and none is made up."""
    text = closing()

    assert "items/s" not in text
    assert "bound by" not in text


def test_kinds_of_answers_are_named_only_where_there_are_some():
    """Zero refused is not worth a word."""
    items = {"expected": 9, "ok": 7, "failed": 1, "missing": 1, "truncated": 0, "filtered": 2, "refused": 1}

    assert items_line(items) == "9 items: 7 answered, 1 failed, 1 missing, 2 filtered, 1 refused"


def test_the_speed_is_one_line():
    """Rate, limit at the end and on average, law, in flight, gradient, retries; a dash for no gradient."""
    unmeasured = {**SPEED, "limit": {**SPEED["limit"], "gradient": None}}

    assert speed_line(SPEED) == (
        "27.6 items/s, 6,789 output tok/s over 181 s; limit 64 at the end, 51 on average (auto), 48 in flight,"
        " gradient 0.83, 3 retries"
    )
    assert "gradient -, 3 retries" in speed_line(unmeasured)
