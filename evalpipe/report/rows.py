"""Stored rows as text for a terminal. Model output is foreign text: control characters are shown, not obeyed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evalpipe.errors import ConfigError
from evalpipe.records import Status

MAX_CELL = 28
#: C0 and C1 controls (escape sequences among them) but for newline and tab, and characters that reorder text
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def select(table: pa.Table, *, item: str | None, failed: bool, wrong: bool) -> pa.Table:
    """Return the rows that are asked for. Raises ConfigError for an item that the run does not have."""
    if item is not None:
        table = table.filter(pc.equal(table["item_id"], item))
        if not table.num_rows:
            raise ConfigError(f"no result of item {item!r} in this run")
    if failed:
        table = table.filter(pc.equal(table["status"], Status.FAILED.value))
    if wrong:
        table = table.filter(pc.equal(table["correct"], pa.scalar(False)))
    return table


def format_rows(table: pa.Table, columns: Sequence[str], *, total: int) -> str:
    """Return a plain table of some columns. total: rows there are, of which these are the first."""
    rows = [[_cell(row[name]) for name in columns] for row in table.select(list(columns)).to_pylist()]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in (columns, *rows)
    ]
    return "\n".join([*(line.rstrip() for line in lines), f"{len(rows)} of {total} rows"])


def format_item(row: Mapping[str, Any]) -> str:
    """Return one row whole: short columns as `name: value`, long texts under their name."""
    short = [f"{name}: {safe(str(value))}" for name, value in row.items() if value is not None and not _is_long(value)]
    long = [f"--- {name} ---\n{safe(value)}" for name, value in row.items() if _is_long(value)]
    return "\n".join([*short, *long])


def safe(text: str) -> str:
    """Make control characters visible, so that an answer cannot move the cursor or hide text."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _is_long(value: object) -> bool:
    return isinstance(value, str) and ("\n" in value or len(value) > 100)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.3f}" if isinstance(value, float) else safe(str(value)).replace("\n", " ")
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 2] + ".."
