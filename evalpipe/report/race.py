"""The table of a race as plain text (at most 120 columns) and as plain values for JSON. Pure: no I/O, no printing.

For the suite `published` it puts the publication's own figures beside ours, and says what in them does not add up.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evalpipe.sim.race import BEST_FIXED, RaceRow, RaceTable

WIDTH = 120
LABEL_WIDTH = 42
HEADER = ("makespan", "x best", "429s", "P50", "P99", "P99/work", "sigma^2", "CV", "Little", "mean", "left")
COLUMN_WIDTHS = (10, 7, 6, 7, 7, 9, 8, 6, 7, 6, 5)
LEGEND = (
    "makespan in s; x best: over the best fixed limit found; 429s: rejected attempts; P50, P99: latency in ms of the",
    "attempts that succeeded, P99/work: per unit of work; sigma^2, CV: completions a second in 1 s bins, middle 80 %;",
    "Little: requests in flight as completions/s x mean latency, mean: over time; left: jobs unfinished.",
)


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A line of the publication's table: 2,000 tasks on its simulated server. Latencies in seconds.

    claimed_in_flight: what it says was in flight, None where it gives no number.
    """

    label: str
    makespan_s: float
    rejections: int
    p50_s: float
    p99_s: float
    variance: float
    claimed_in_flight: int | None

    @property
    def littles_in_flight(self) -> float:
        """Tasks a second times the median latency: the nearest to Little's law that the table allows."""
        return PUBLISHED_TASKS / self.makespan_s * self.p50_s

    @property
    def littles_at_most(self) -> float:
        """The same if every task had taken as long as the slowest hundredth."""
        return PUBLISHED_TASKS / self.makespan_s * self.p99_s


PUBLISHED_TASKS = 2_000
PUBLISHED = (
    PublishedRow("fixed 64", 184.2, 382, 2.850, 6.400, 412.5, 64),
    PublishedRow("AIMD", 142.5, 86, 1.420, 4.100, 185.0, None),
    PublishedRow("adaptive (gradient)", 98.4, 0, 0.480, 0.850, 8.2, 45),
)


def format_race(table: RaceTable) -> str:
    """Return the table as text, one block a course; ends without a newline."""
    head = f"suite {table.suite}, seeds {', '.join(map(str, table.seeds))}; best fixed limits found by search"
    blocks = [[head], *(_block(table, course) for course in _courses(table)), list(LEGEND)]
    if table.suite == "published":
        blocks += [
            _published_block(),
            _bullets("What does not add up in them", DOUBTS),
            _bullets("Here", remarks(table)),
        ]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def to_dict(table: RaceTable) -> dict[str, Any]:
    """Return plain values for JSON; in the suite `published` with the publication's figures and the remarks."""
    data = asdict(table)
    if table.suite == "published":
        data["published"] = [asdict(row) | {"littles_in_flight": row.littles_in_flight} for row in PUBLISHED]
        data["doubts"] = list(DOUBTS)
        data["remarks"] = remarks(table)
    return data


def remarks(table: RaceTable) -> list[str]:
    """Say in words what our own rows show of the published law: where it fails, and the form that works."""
    said = []
    plain = [row for row in table.rows if row.contender == "gradient-published" and row.over_best >= 2]
    if plain:
        worst = max(plain, key=lambda row: row.over_best)
        said.append(
            f"The published law on raw latency fails on spread work: on {worst.course} it takes"
            f" {worst.heat.makespan_s:.0f} s, {worst.over_best:.1f} times the best fixed limit, with"
            f" {worst.heat.mean_in_flight:.1f} requests in flight: it reads a long answer as congestion."
        )
    normalised = [row for row in table.rows if row.contender == "gradient-published, normalise: total"]
    if normalised:
        worst = max(normalised, key=lambda row: row.over_best)
        said.append(
            f"On latency per unit of work it stays within {worst.over_best:.2f} times the best fixed limit, with"
            f" {sum(row.heat.rejections for row in normalised):g} rejections: the idea carries with that discipline."
        )
    return said


def _doubts() -> tuple[str, ...]:
    fixed, _, adaptive = PUBLISHED
    return (
        f"Little's law: {PUBLISHED_TASKS:,} tasks / {adaptive.makespan_s} s x {adaptive.p50_s} s are"
        f" {adaptive.littles_in_flight:.0f} requests in flight, at most {adaptive.littles_at_most:.0f} by its P99, not"
        f" {adaptive.claimed_in_flight}; 45 in flight at 0.48 s would be done in"
        f" {PUBLISHED_TASKS * adaptive.p50_s / 45:.0f} s. Fixed 64 comes to {fixed.littles_in_flight:.0f}.",
        "The example of its formula, 400 -> 600 ms takes the limit from 48 to 42, is not what the formula gives:"
        f" 48 x 400/600 + 1.5 = {48 * 400 / 600 + 1.5:.1f}.",
        f"Fixed 64 never has more than 64 in flight and the server rejects above 70: its {fixed.rejections} rejections"
        " cannot come from that server alone; with a second tenant (cliff-shared) they do.",
    )


DOUBTS = _doubts()


def _courses(table: RaceTable) -> list[str]:
    return list(dict.fromkeys(row.course for row in table.rows))


def _block(table: RaceTable, course: str) -> list[str]:
    jobs = dict(zip(_courses(table), table.jobs, strict=True))[course]
    best = next(found.limit for found in table.best if found.course == course)
    rows = [row for row in table.rows if row.course == course]
    return [
        _line(f"{course}; {jobs:,} jobs", HEADER),
        *(_line(f"  {_label(row, best)}", _cells(row)) for row in rows),
    ]


def _label(row: RaceRow, best: int) -> str:
    return f"{row.contender}: {best}" if row.contender == BEST_FIXED else row.contender


def _cells(row: RaceRow) -> Sequence[str]:
    heat = row.heat
    return (
        f"{heat.makespan_s:.1f}",
        f"{row.over_best:.2f}",
        f"{heat.rejections:.0f}",
        f"{heat.p50_s * 1000:.0f}",
        f"{heat.p99_s * 1000:.0f}",
        f"{heat.p99_per_work_s * 1000:.0f}",
        f"{heat.variance:.1f}",
        f"{heat.cv:.2f}",
        f"{heat.littles_in_flight:.1f}",
        f"{heat.mean_in_flight:.1f}",
        f"{heat.unfinished:.0f}",
    )


def _published_block() -> list[str]:
    lines = [_line(f"the publication's own; {PUBLISHED_TASKS:,} tasks", HEADER)]
    for row in PUBLISHED:
        claimed = "-" if row.claimed_in_flight is None else f"{row.claimed_in_flight}"
        cells = (
            f"{row.makespan_s}",
            "-",
            f"{row.rejections}",
            f"{row.p50_s * 1000:.0f}",
            f"{row.p99_s * 1000:.0f}",
            "-",
            f"{row.variance}",
            "-",
            f"{row.littles_in_flight:.1f}",
            claimed,
            "-",
        )
        lines.append(_line(f"  {row.label}", cells))
    return [*lines, "Little: from its P50, the only average it gives; mean: what it says was in flight."]


def _line(label: str, cells: Iterable[str]) -> str:
    columns = "".join(cell.rjust(width) for cell, width in zip(cells, COLUMN_WIDTHS, strict=True))
    return f"{label:<{LABEL_WIDTH}.{LABEL_WIDTH}}{columns}"


def _bullets(title: str, sentences: Iterable[str]) -> list[str]:
    return [f"{title}:", *(line for sentence in sentences for line in _wrapped(sentence))]


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, initial_indent="- ", subsequent_indent="  ")
