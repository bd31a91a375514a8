"""How a running evaluation looks: one plain line, or a panel for a terminal. Strings and rich objects; no printing."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evalpipe.control.core import TimedChange
from evalpipe.runtime.progress import Progress
from evalpipe.scoring.statistics import wilson

SHOWN_CHANGES = 6
WIDE = 110  # columns that four figures side by side need


def plain_line(progress: Progress) -> str:
    """One line that says all: how far, how well, how fast, and what bounds it."""
    done = progress.ok + progress.failed
    parts = [
        f"{done}/{progress.expected} {100 * done // max(progress.expected, 1)}%",
        f"acc {_accuracy(progress)}",
        f"limit {progress.limit:.0f} ({progress.in_flight} in flight, {progress.waiting} waiting)",
        f"gradient {_number(progress.gradient)}",
        f"{progress.requests_per_s:.1f} items/s {progress.tokens_per_s:,.0f} tok/s",
        f"p50 {_seconds(progress.p50_s)} p99 {_seconds(progress.p99_s)}",
        f"retries {progress.retries} failed {progress.failed}{_kinds(progress)}",
        f"eta {_duration(progress.eta_s)}",
        f"bound by: {progress.bound_by}",
    ]
    return " | ".join(parts)


def change_line(timed: TimedChange) -> str:
    """One move of the limit, with the numbers behind it."""
    change, evidence = timed.change, timed.change.evidence
    seen = []
    if evidence.gradient is not None:
        seen.append(f"gradient {evidence.gradient:.2f}")
    if evidence.baseline_s is not None and evidence.recent_s is not None:
        unit = "ms per unit of work" if evidence.per_work else "ms"
        seen.append(f"{1000 * evidence.baseline_s:.1f} -> {1000 * evidence.recent_s:.1f} {unit}")
    if evidence.samples:
        seen.append(f"{evidence.samples} samples")
    if evidence.state:
        seen.append(evidence.state)
    return f"{timed.at:7.1f} s  limit {change.old:6.1f} -> {change.new:6.1f}  {change.reason:9s} {', '.join(seen)}"


def panel(progress: Progress, changes: list[TimedChange], *, name: str, width: int = WIDE) -> RenderableType:
    """The live panel: bar, figures, last moves of the limit, what bounds the run. width: columns of the terminal."""
    done = progress.ok + progress.failed
    figures = [figure for row in _figures(progress) for figure in row]
    across = 4 if width >= WIDE else 2
    grid = Table.grid(padding=(0, 3))
    for _ in range(across):
        grid.add_column(justify="left", no_wrap=True)
    for row in (figures[i : i + across] for i in range(0, len(figures), across)):
        grid.add_row(*(Text.assemble((f"{label} ", "dim"), value) for label, value in row))
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(ProgressBar(total=max(progress.expected, 1), completed=done), f"{done:,} of {progress.expected:,}")
    moves = [Text(change_line(change), style="dim", no_wrap=True, overflow="ellipsis") for change in changes]
    shadows = [Text(shadow_line(progress), style="dim", no_wrap=True, overflow="ellipsis")] if progress.shadows else []
    bound = Text.assemble(("bound by: ", "dim"), (progress.bound_by, "bold"))
    return Panel(Group(bar, grid, *moves[-SHOWN_CHANGES:], *shadows, bound), title=name, title_align="left")


def shadow_line(progress: Progress) -> str:
    """Say what other laws would have set. They were not obeyed, so it is no forecast of what would have followed."""
    told = "  ".join(f"{law} {limit:.0f}" for law, limit in progress.shadows.items())
    return f"shadow, not obeyed: {told}"


def _figures(progress: Progress) -> list[list[tuple[str, str]]]:
    return [
        [
            ("accuracy", _accuracy(progress)),
            ("failed", f"{progress.failed}{_kinds(progress)}"),
            ("retries", str(progress.retries)),
            ("eta", _duration(progress.eta_s)),
        ],
        [
            ("limit", f"{progress.limit:.0f}"),
            ("in flight", f"{progress.in_flight} ({progress.waiting} waiting)"),
            ("gradient", _number(progress.gradient)),
            ("workers", str(progress.workers)),
        ],
        [
            ("items/s", f"{progress.requests_per_s:.1f}"),
            ("tok/s", f"{progress.tokens_per_s:,.0f}"),
            ("p50", _seconds(progress.p50_s)),
            ("p99", _seconds(progress.p99_s)),
        ],
    ]


def _accuracy(progress: Progress) -> str:
    if not progress.scored:
        return "-"
    low, high = wilson(progress.correct, progress.scored)
    return f"{progress.correct / progress.scored:.3f} [{low:.3f}, {high:.3f}]"


def _kinds(progress: Progress) -> str:
    if not progress.failures:
        return ""
    return " (" + ", ".join(f"{kind} {count}" for kind, count in sorted(progress.failures.items())) + ")"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
