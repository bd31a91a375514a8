"""Text, JSON and Parquet of the suite."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evalpipe.report.suite import LABEL_WIDTH, LEGEND, WIDTH, format_suite, mean, to_dict
from evalpipe.report.suite_file import SCHEMA, write_rows
from evalpipe.sim.cases import CASES
from evalpipe.sim.oracle import Entry
from evalpipe.sim.row import Row
from evalpipe.sim.suite import SuiteTable

NUMBERS = {field.name: math.nan for field in fields(Row) if field.type == "float"}


def row(case: str, law: str, seed: int = 0, **figures) -> Row:
    """A row without figures but those given."""
    named = {"case": case, "kind": "batching", "seed": seed, "law": law, "limit": 64, "reasons": "cut 2", "broken": ()}
    return Row(**(NUMBERS | named | figures))


@pytest.fixture
def table() -> SuiteTable:
    """Two cases of two kinds, one law with a broken bound."""
    rows = (
        row("64 slots", "progress", 0, over_best=1.01, rejections=0.0, mean_in_flight=65.0, peak_in_flight=80.0),
        row("64 slots", "progress", 1, over_best=1.05, rejections=4.0, broken=("over_best 1.05 > 1.03",)),
        row("64 slots", "gradient", 0, over_best=1.20),
        row("64 slots", "gradient", 1, over_best=1.30),
        replace(row("two runs", "progress", jain=0.991), kind="neighbours", limit=0),
        replace(row("two runs", "gradient", jain=0.8), kind="neighbours", limit=0),
    )
    return SuiteTable("full", ("progress", "gradient"), (0, 1), rows, {"64 slots #0": Entry("k", 64, 9.0, 12)}, 1)


def test_a_line_a_case_and_law_with_means_over_the_seeds(table: SuiteTable):
    """Mean and worst ratio, the mean of what was refused; blank where a figure has no meaning."""
    lines = format_suite(table).splitlines()

    (ours,) = [line for line in lines if line.startswith("  64 slots") and "progress" in line]
    (pair,) = [line for line in lines if line.startswith("  two runs") and "progress" in line]
    assert ours.split()[2:] == ["progress", "1.03", "1.05", "64", "2"]
    assert pair.split()[2:] == ["progress", "0", "0.99"]


def test_the_text_fits_a_terminal(table: SuiteTable):
    """No line is wider than 120 columns, the legend included."""
    wordy = replace(table.rows[1], broken=("over_best 1.05 > 1.03",) * 9, reasons="collapse 12, " * 15)

    text = format_suite(replace(table, rows=(*table.rows, wordy)))

    assert max(map(len, [*text.splitlines(), *LEGEND])) <= WIDTH
    assert max(len(case.name) for case in CASES) <= LABEL_WIDTH - 3


def test_what_is_above_its_bound_is_told_with_why(table: SuiteTable):
    """The law, the case, the seed, both numbers, and what the law did."""
    text = format_suite(table)

    assert "- progress on 64 slots #1: over_best 1.05 > 1.03" in text
    assert "best fixed limit 64; moves: cut 2" in text
    assert "Nothing is above" in format_suite(replace(table, rows=table.rows[:1]))


def test_the_summary_judges_the_mean(table: SuiteTable):
    """Mean over the raced rows, what it may be, the worst and where."""
    text = format_suite(table)

    assert "mean 1.030 (may be 1.03), worst 1.050 on 64 slots #1; 1 of 3 rows above a bound" in text
    assert "mean 1.250 (may be 1.20)" in text


def test_stale_best_fixed_limits_are_told(table: SuiteTable):
    """Whoever pays for the search again should know why it took so long."""
    assert "1 of 1 best fixed limits were not in the table or stale" in format_suite(table)
    assert "stale" not in format_suite(replace(table, renewed=0))


def test_json_has_null_where_there_is_no_figure(table: SuiteTable):
    """Plain values: NaN is no JSON."""
    data = json.loads(json.dumps(to_dict(table), allow_nan=False))

    assert data["rows"][0]["over_best"] == 1.01
    assert data["rows"][0]["jain"] is None
    assert data["summaries"][0]["law"] == "progress"


def test_parquet_has_a_column_a_figure(table: SuiteTable, tmp_path: Path):
    """What was written is read back, the reasons of a broken bound as a list."""
    file = tmp_path / "rows.parquet"

    write_rows(table, file)

    read = pq.read_table(file)
    assert read.schema.equals(SCHEMA)
    assert read.column_names == [field.name for field in fields(Row)]
    assert read["over_best"].to_pylist()[:2] == [1.01, 1.05]
    assert read["broken"].to_pylist()[1] == ["over_best 1.05 > 1.03"]


def test_the_mean_of_nothing_is_nothing():
    """A figure that no seed has stays blank."""
    assert mean([1.0, math.nan, 3.0]) == 2.0
    assert math.isnan(mean([math.nan]))
