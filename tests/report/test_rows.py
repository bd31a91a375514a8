"""Stored rows as text: chosen, cut to fit, and harmless on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from store.store_rows import make_result

from evalpipe.errors import ConfigError
from evalpipe.report.rows import format_item, format_rows, safe, select
from evalpipe.store.schema import RESULT_SCHEMA
from evalpipe.store.segments import to_table


@pytest.fixture
def table() -> pa.Table:
    """Item 0 right, 1 wrong, 2 failed, 3 answered without a score."""
    rows = [make_result(0), replace(make_result(1), score=0.0, correct=False), make_result(2, failed=True)]
    return to_table([*rows, replace(make_result(3), score=None, correct=None)], RESULT_SCHEMA)


@pytest.mark.parametrize(
    ("options", "items"),
    [
        ({}, [0, 1, 2, 3]),
        ({"failed": True}, [2]),
        ({"wrong": True}, [1]),
        ({"item": "item-3"}, [3]),
        ({"item": "item-0", "failed": True}, []),
    ],
)
def test_rows_are_chosen(table: pa.Table, options: dict, items: list[int]):
    """A failed row is not wrong, and neither is one without a verdict."""
    chosen = select(table, **{"item": None, "failed": False, "wrong": False} | options)

    assert chosen["item_index"].to_pylist() == items


def test_an_item_that_is_not_there_is_a_mistake(table: pa.Table):
    """An empty table would look like an item without results."""
    with pytest.raises(ConfigError, match="no result of item 'item-9'"):
        select(table, item="item-9", failed=False, wrong=False)


def test_rows_line_up(table: pa.Table):
    """Columns as wide as their widest cell, a dash for null, the number of rows there are at the end."""
    text = format_rows(table.slice(0, 3), ["item_id", "correct", "rtt_s", "response"], total=4)

    assert text.splitlines() == [
        "item_id  correct  rtt_s  response",
        "item-0   True     0.250  yes",
        "item-1   False    0.250  yes",
        "item-2   -        0.250  -",
        "3 of 4 rows",
    ]


def test_no_rows_are_a_header(table: pa.Table):
    """Nothing chosen: no exception, and it says so."""
    assert format_rows(table.slice(0, 0), ["item_id", "status"], total=0) == "item_id  status\n0 of 0 rows"


def test_a_long_cell_is_cut_and_stays_on_its_line():
    """Answers of many lines do not break the table."""
    row = make_result(0, text="first\nsecond " + "x" * 100)

    line = format_rows(to_table([row], RESULT_SCHEMA), ["response"], total=1).splitlines()[1]

    assert line == "first second xxxxxxxxxxxxx.."


def test_an_item_is_shown_whole():
    """Short columns by name, long texts under theirs, nulls left out."""
    text = format_item({"item_id": "a", "score": 1.0, "prompt": "two\nlines", "reasoning": None, "response": "x" * 101})

    assert text == f"item_id: a\nscore: 1.0\n--- prompt ---\ntwo\nlines\n--- response ---\n{'x' * 101}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("over\rwritten", "over\\x0dwritten"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\x202eb"),
        ("kept\n\ttoo, é 漢 🙂", "kept\n\ttoo, é 漢 🙂"),
    ],
)
def test_model_output_cannot_drive_the_terminal(text: str, expected: str):
    """Escape sequences, carriage returns and text that reorders are shown, not obeyed; letters stay."""
    assert safe(text) == expected


def test_neither_table_nor_item_passes_escapes_on():
    """Both ways of showing a row go through it."""
    row = make_result(0, text="\x1b[31mred" + "y" * 120)

    table = format_rows(to_table([row], RESULT_SCHEMA), ["response"], total=1)
    item = format_item({"response": row.response, "extracted": "\x1b[0m"})

    assert "\x1b" not in table + item
