"""The suite's table as plain text (at most 120 columns) and as plain values for JSON. Pure: no I/O, no printing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from evalpipe.sim.row import Row
from evalpipe.sim.suite import SuiteTable, Summary

WIDTH, LABEL_WIDTH, LAW_WIDTH = 120, 28, 12
LEGEND = (
    "Means over seeds. x best: makespan over that of the best fixed limit; worst: of the worst seed; best: that limit;",
    "429s: attempts refused; TTFT, P50, P99: medians and tail over the best fixed limit's;",
    "prmpt: preemptions; CV: of completions a second; busy: slot time used; settle: s after a change of size;",
    "Jain: fairness among our own runs; quota: share used of what it let through. What is above a bound is told below.",
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: how wide, and its cell for the rows of a case and a law."""

    head: str
    width: int
    cell: Callable[[Sequence[Row]], str]


def _mean(figure: str, digits: int) -> Callable[[Sequence[Row]], str]:
    return lambda rows: _shown(mean([getattr(row, figure) for row in rows]), digits)


def _worst(rows: Sequence[Row]) -> str:
    return _shown(max((row.over_best for row in rows if not math.isnan(row.over_best)), default=math.nan), 2)


COLUMNS = (
    Column("x best", 7, _mean("over_best", 2)),
    Column("worst", 6, _worst),
    Column("best", 5, _mean("limit", 0)),
    Column("429s", 6, _mean("rejections", 0)),
    Column("TTFT", 7, _mean("ttft_over_best", 2)),
    Column("P50", 6, _mean("p50_over_best", 2)),
    Column("P99", 6, _mean("p99_over_best", 2)),
    Column("prmpt", 6, _mean("preemptions", 0)),
    Column("CV", 5, _mean("cv", 2)),
    Column("busy", 5, _mean("utilisation", 2)),
    Column("settle", 7, _mean("settle_s", 1)),
    Column("Jain", 5, _mean("jain", 2)),
    Column("quota", 6, _mean("quota_share", 2)),
)


def format_suite(table: SuiteTable) -> str:
    """Return the table as text: cases by kind, what is above its bound and why, a summary; no newline at its end."""
    seeds = f"seed {table.seeds[0]}" if len(table.seeds) == 1 else f"seeds {', '.join(map(str, table.seeds))}"
    cases = len({row.case for row in table.rows})
    laws = f"laws {', '.join(table.laws)}"
    blocks = [f"suite {table.suite}: {cases} case{'s' * (cases != 1)}, {seeds}; {laws}{_renewed(table)}"]
    blocks += ["\n".join(_kind(kind, list(rows))) for kind, rows in groupby(table.rows, key=lambda row: row.kind)]
    blocks += ["\n".join(LEGEND), "\n".join(_above(table)), "\n".join(_summary(table.summaries()))]
    return "\n\n".join(blocks)


def to_dict(table: SuiteTable) -> dict[str, Any]:
    """Return plain values for JSON; None where a figure has no meaning."""
    return {
        "suite": table.suite,
        "laws": list(table.laws),
        "seeds": list(table.seeds),
        "summaries": [_plain(asdict(summary)) for summary in table.summaries()],
        "rows": [_plain(asdict(row)) for row in table.rows],
    }


def mean(values: Sequence[float]) -> float:
    """Return the mean of those that are numbers, NaN for none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _renewed(table: SuiteTable) -> str:
    if not table.renewed:
        return ""
    known = len(table.entries)
    return f"\n{table.renewed} of {known} best fixed limits were not in the table or stale, and were sought anew"


def _kind(kind: str, rows: Sequence[Row]) -> list[str]:
    heads = "".join(column.head.rjust(column.width) for column in COLUMNS)
    lines = [f"{kind:<{LABEL_WIDTH + LAW_WIDTH}}{heads}"]
    for case in dict.fromkeys(row.case for row in rows):
        for law in dict.fromkeys(row.law for row in rows):
            meant = [row for row in rows if row.case == case and row.law == law]
            cells = "".join(column.cell(meant).rjust(column.width) for column in COLUMNS)
            lines.append(f"  {case:<{LABEL_WIDTH - 2}.{LABEL_WIDTH - 3}}{law:<{LAW_WIDTH}}{cells}".rstrip())
    return lines


def _above(table: SuiteTable) -> list[str]:
    broken = [row for row in table.rows if row.broken]
    if not broken:
        return ["Nothing is above its bound."]
    return ["Above a bound, and why:", *(line for row in broken for line in _why(row))]


def _why(row: Row) -> list[str]:
    best = f", best fixed limit {row.limit}" if row.limit else ""
    did = (
        f"(in flight {row.mean_in_flight:.1f} on average, {row.peak_in_flight:.0f} at most{best};"
        f" moves: {row.reasons or 'none'})"
    )
    return [*_wrapped(f"- {row.law} on {row.case} #{row.seed}: {'; '.join(row.broken)}"), *_wrapped(f"  {did}")]


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", drop_whitespace=True)


def _summary(summaries: Sequence[Summary]) -> list[str]:
    lines = ["Over the best fixed limit, all raced cases:"]
    for summary in summaries:
        bound = "" if summary.most is None else f" (may be {summary.most:.2f})"
        kinds = ", ".join(f"{kind} {value:.3f}" for kind, value in summary.by_kind.items())
        lines += _wrapped(
            f"  {summary.law}: mean {summary.mean:.3f}{bound}, worst {summary.worst:.3f} on {summary.worst_case};"
            f" {summary.broken} of {summary.rows} rows above a bound; {kinds}"
        )
    return lines


def _shown(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}
