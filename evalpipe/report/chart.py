"""Charts as inline SVG that stay sharp and readable at any width. Numbers in, paths and label places out. Pure.

A plot is stretched to the width there is (viewBox 1000 x 100, no aspect ratio kept), so it holds lines only: strokes
keep their width, and dots are lines of no length with round ends. All text is HTML beside it, placed in percent.
`templates/charts.html` draws what is made here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 1000.0, 100.0  # of the viewBox
_TIME_STEPS_S = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800),
)

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mark:
    """A label at a place along an axis: at is in percent from the left, or from the top."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is drawn. style: class of the style sheet, names the colour. key: of its values, for the pointer.

    kind: "line", "area", "dots", "rule" (vertical) or "level" (horizontal). label "": not in the legend.
    """

    style: str
    path: str
    kind: str = "line"
    label: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A word inside the plot at a vertical rule. at: percent from the left. row: 0 is the top one."""

    at: float
    label: str
    style: str = ""
    row: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot with its labels. title: what is drawn; unit: of the y axis. empty: said instead, where nothing is."""

    title: str
    unit: str
    lines: Sequence[Line] = ()
    x_marks: Sequence[Mark] = ()
    y_marks: Sequence[Mark] = ()
    notes: Sequence[Note] = ()
    x_label: str = ""
    empty: str = ""
    is_over_time: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps low..high to 0..1. Raises nothing: a range without width becomes one around its value."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Values, *, floor: float | None = 0.0, least: float = 1e-9, count: int = 4) -> Scale:
        """Span the finite values from one round number to another. floor: where it begins, None at what is there."""
        finite = values[np.isfinite(values)]
        high = max(float(finite.max()), least) if len(finite) else 1.0
        low = floor if floor is not None else (float(finite.min()) if len(finite) else 0.0)
        if high <= low:
            high = low + max(abs(low), 1.0)
        step = round_step(high - low, count)
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def y(self, value: float) -> float:
        return HEIGHT * (1.0 - self.share(value))

    def xs(self, values: Values) -> Values:
        return WIDTH * (values - self.low) / (self.high - self.low)

    def ys(self, values: Values) -> Values:
        return HEIGHT * (1.0 - (values - self.low) / (self.high - self.low))


def round_step(span: float, count: int) -> float:
    """Return the step of 1, 2 or 5 times a power of ten that gives at most `count` steps over the span."""
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * (1 - 1e-9))


def y_marks(scale: Scale, *, count: int = 4) -> list[Mark]:
    """Return round numbers up the axis, percent from the top."""
    step = round_step(scale.high - scale.low, count)
    values = np.arange(math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9) + 1) * step
    return [Mark(_percent(1.0 - scale.share(value)), number(value)) for value in values.tolist()]


def x_marks(scale: Scale, *, count: int = 5) -> list[Mark]:
    """Return round numbers along the axis, percent from the left."""
    step = max(round_step(scale.high - scale.low, count), 1.0)
    values = np.arange(math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9) + 1) * step
    return [Mark(_percent(scale.share(value)), number(value)) for value in values.tolist()]


def time_marks(scale: Scale, *, count: int = 5) -> list[Mark]:
    """Return round times along the axis; scale: in seconds, from 0."""
    step = next((step for step in _TIME_STEPS_S if (scale.high - scale.low) / step <= count), _TIME_STEPS_S[-1])
    values = np.arange(0, math.floor(scale.high / step + 1e-9) + 1) * step
    return [Mark(_percent(scale.share(value)), duration(value)) for value in values.tolist()]


def line(xs: Values, ys: Values) -> str:
    """Return the path through points of the viewBox; a gap where a value is not finite, a dot where one is alone."""
    return "".join(_stroke(run) for run in _runs(xs, ys))


def steps(xs: Values, ys: Values) -> str:
    """Return a path that keeps each value until the next one."""
    return "".join(_stroke(_stepped(run)) for run in _runs(xs, ys))


def area(xs: Values, ys: Values) -> str:
    """Return the closed path between the points and the x axis."""
    found = []
    for run in _runs(xs, ys):
        (first, _), (last, _) = run[0], run[-1]
        found.append(f"{_stroke(_stepped(run))}V{_short(HEIGHT)}H{_short(first)}Z" if last > first else "")
    return "".join(found)


def dots(xs: Values, ys: Values) -> str:
    """Return strokes of no length, which round ends make dots."""
    return "".join(f"M{_short(x)} {_short(y)}h0" for run in _runs(xs, ys) for x, y in run)


def rules(xs: Sequence[float], *, top: float = 0.0, bottom: float = HEIGHT) -> str:
    """Return vertical lines at places of the viewBox."""
    return "".join(f"M{_short(x)} {_short(top)}V{_short(bottom)}" for x in xs)


def level(y: float) -> str:
    return f"M0 {_short(y)}H{_short(WIDTH)}"


def spread(notes: Sequence[Note], *, gap: float = 14.0, rows: int = 1) -> list[Note]:
    """Keep the notes that stand at least `gap` percent from the one before in their row; the first ones win."""
    last, kept = [-math.inf] * rows, []
    for note in sorted(notes, key=lambda note: note.at):
        row = next((row for row in range(rows) if note.at - last[row] >= gap), None)
        if row is not None:
            last[row] = note.at
            kept.append(Note(note.at, note.label, note.style, row))
    return kept


def number(value: float) -> str:
    """Say a number in at most five characters: 0, 0.25, 12, 1.5k, 20k, 3M."""
    size = abs(value)
    if size >= 999_950:
        return f"{value / 1e6:.3g}M"
    if size >= 1_000:
        return f"{value / 1e3:.3g}k"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Say a time in at most two units: 0, 0.5 s, 45 s, 2 min, 1 min 30 s, 2 h."""
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds else "0"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    parts, left = [], round(seconds)
    for name, size in units:
        if left >= size:
            parts.append(f"{left // size} {name}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:2])


def _runs(xs: Values, ys: Values) -> list[list[tuple[float, float]]]:
    """Return the stretches of finite points."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if math.isfinite(x) and math.isfinite(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _stepped(run: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    corners = list(run[:1])
    for (_, before), (x, y) in pairwise(run):
        corners += [(x, before), (x, y)] if y != before else [(x, y)]
    return corners


def _stroke(run: Sequence[tuple[float, float]]) -> str:
    if len(run) == 1:
        return f"M{_short(run[0][0])} {_short(run[0][1])}h0"
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in run)


def _short(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _percent(share: float) -> float:
    return round(100.0 * share, 2)
