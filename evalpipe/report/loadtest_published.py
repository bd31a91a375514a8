"""The published closed- and open-loop table beside ours, and what in it does not add up. Pure: no I/O, no printing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evalpipe.sim.load_table import LoadRow

WIDTH = 120
OUTPUT_TOKENS = 128  # a request, as published; prompts of 512
HEADER = ("tok/s", "TTFT P50", "TTFT P99", "TPOT P99", "preemption")
WIDTHS = (8, 10, 10, 10, 11)


@dataclass(frozen=True, slots=True)
class PublishedLoad:
    """A row as published: 8 H100, a model of 70 billion parameters, 512 tokens in, 128 out. Milliseconds.

    label: its own; level: the users, or the rate its tokens imply.
    """

    label: str
    loop: str
    level: float
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p99_ms: float
    preempted: float

    @property
    def requests_per_s(self) -> float:
        return self.tokens_per_s / OUTPUT_TOKENS


PUBLISHED = (
    PublishedLoad("closed 32", "closed", 32, 2890, 44, 88, 21.2, 0.0),
    PublishedLoad("closed 64", "closed", 64, 3460, 60, 148, 23.8, 0.0),
    PublishedLoad("closed 128", "closed", 128, 3620, 118, 330, 28.5, 0.0),
    PublishedLoad("open 20/s", "open", 22.0, 2820, 46, 95, 21.6, 0.0),
    PublishedLoad("open 30/s", "open", 26.7, 3420, 65, 185, 24.2, 0.0),
    PublishedLoad("open 35/s", "open", 35.0, 1280, 1920, 13400, 188.0, 0.428),
)


def format_load_table(rows: Sequence[LoadRow]) -> str:
    """Return ours under each published row with our deviation, then the lesson and the doubts."""
    lines = [_line("", HEADER)]
    for theirs in PUBLISHED:
        lines.append(_line(f"published {theirs.label}", _published_cells(theirs)))
        ours = next((row for row in rows if (row.loop, row.level) == (theirs.loop, theirs.level)), None)
        if ours is not None:
            unit = "/s" if ours.loop == "open" else ""
            lines.append(_line(f"  ours    {ours.loop} {ours.level:g}{unit}", _own_cells(ours)))
            lines.append(_line("          deviation", _deviations(ours, theirs)))
    return "\n".join(
        [*lines, *_bullets("What it shows", lessons(rows)), *_bullets("What does not add up in it", DOUBTS)]
    )


def lessons(rows: Sequence[LoadRow]) -> list[str]:
    """Say what the rows show together: the closed loop never meets the collapse that the open loop falls into."""
    closed = max((row for row in rows if row.loop == "closed"), key=lambda row: row.tokens_per_s)
    worst = min((row for row in rows if row.loop == "open"), key=lambda row: row.tokens_per_s)
    return [
        f"Closed loop hides the collapse: {closed.level:.0f} users get {closed.tokens_per_s:,.0f} tok/s, the best of"
        " all rows, because users who wait offer no more than the server serves. Requests that come by themselves at"
        f" {worst.level:g}/s leave {worst.tokens_per_s:,.0f} tok/s and a TTFT P99 of {worst.ttft_p99_s:.1f} s.",
        f"Preemption counts per request taken in; {100 * worst.refused_share:.0f} % are refused (429). The publication"
        " says neither what it counts nor that anything is refused.",
        "Its TTFT P50 of 1.9 s at 35/s lies in a gap: requests from before the collapse wait some tenths of a second,"
        f" those after it 8 s and more. Ours is {worst.ttft_p50_s:.1f} s, and falls to tenths where the minute holds a"
        " little more of the time before: no median of such a minute is a number to compare.",
    ]


def _doubts() -> tuple[str, ...]:
    best = max(row.requests_per_s for row in PUBLISHED if row.loop == "closed")
    users = PUBLISHED[2]
    mean_tpot_ms = (1000 * users.level / users.requests_per_s - users.ttft_p50_ms) / (OUTPUT_TOKENS - 1)
    return (
        f"20/s x {OUTPUT_TOKENS} tokens are at most {20 * OUTPUT_TOKENS:,} tok/s; it says 2,820, which is 22/s.",
        f"30/s is above its best closed-loop rate of {best:.1f}/s, and its 3,420 tok/s are 26.7/s: the other 3.3/s"
        " would wait 7 s after a minute, not 185 ms.",
        f"With {users.level:.0f} users Little's law gives a mean TPOT of {mean_tpot_ms:.1f} ms, above its own P99 of"
        f" {users.tpot_p99_ms} ms.",
        "At 35/s with 10/s served, 13.4 s of TTFT are reached after 5 s of test unless the queue is bounded; no bound"
        " and no refusals are told.",
    )


DOUBTS = _doubts()


def _published_cells(row: PublishedLoad) -> Sequence[str]:
    return _cells(row.tokens_per_s, row.ttft_p50_ms, row.ttft_p99_ms, row.tpot_p99_ms, row.preempted)


def _own_cells(row: LoadRow) -> Sequence[str]:
    return _cells(
        row.tokens_per_s, 1000 * row.ttft_p50_s, 1000 * row.ttft_p99_s, 1000 * row.tpot_p99_s, row.preemption_rate
    )


def _cells(tokens_per_s: float, p50_ms: float, p99_ms: float, tpot_ms: float, preempted: float) -> Sequence[str]:
    return f"{tokens_per_s:,.0f}", f"{p50_ms:,.0f}", f"{p99_ms:,.0f}", f"{tpot_ms:.1f}", f"{100 * preempted:.1f} %"


def _deviations(ours: LoadRow, theirs: PublishedLoad) -> Sequence[str]:
    pairs = (
        (ours.tokens_per_s, theirs.tokens_per_s),
        (1000 * ours.ttft_p50_s, theirs.ttft_p50_ms),
        (1000 * ours.ttft_p99_s, theirs.ttft_p99_ms),
        (1000 * ours.tpot_p99_s, theirs.tpot_p99_ms),
        (ours.preemption_rate, theirs.preempted),
    )
    return [f"{100 * (own / given - 1):+.0f} %" if given else "-" for own, given in pairs]


def _bullets(title: str, sentences: Iterable[str]) -> list[str]:
    wrapped = (
        line
        for sentence in sentences
        for line in textwrap.wrap(sentence, WIDTH, initial_indent="- ", subsequent_indent="  ")
    )
    return ["", f"{title}:", *wrapped]


def _line(label: str, cells: Iterable[str]) -> str:
    return f"{label:<24}" + "".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
