"""A picture of laws at work on one case: limit, in flight, the server's queue and the gradient over time. One SVG.

It stands alone: no script, no font, no style sheet beside it; light, or dark where the reader prefers that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from evalpipe.report import chart
from evalpipe.report.chart import Scale, Values
from evalpipe.sim.virtual_run import VirtualRun

WIDTH, LEFT, RIGHT, TOP = 960, 64, 24, 64
TALL, LOW, GAP, BETWEEN, BOTTOM = 150, 76, 34, 40, 44  # heights of plots, and the spaces between them
#: Colours that people with any kind of colour vision tell apart (after Okabe and Ito), and the dark ground's own.
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-size: 16px; font-weight: 600 } .law { font-size: 13px; font-weight: 600 } .unit { fill: #666 }
.ground { fill: #fff } .frame { fill: none; stroke: #ccc } .grid { stroke: #eee }
path { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; stroke-linejoin: round }
.in-flight { fill: #56b4e9; fill-opacity: .35; stroke: none } .limit { stroke: #d55e00 }
.queue { fill: #cc79a7; fill-opacity: .5; stroke: none } .gradient { stroke: #009e73 }
.best { stroke: #777; stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .unit { fill: #aaa } .ground { fill: #16181c } .frame { stroke: #444 } .grid { stroke: #2a2d33 }
}
"""


@dataclass(frozen=True, slots=True)
class _Track:
    """One plot of a panel: what it shows from top to bottom of its height."""

    title: str
    height: int
    scale: Scale
    drawn: Sequence[tuple[str, str]]  # (style, path)


def plot(title: str, runs: Mapping[str, VirtualRun], *, best: int) -> str:
    """Return the SVG. runs: by law, one panel each, on one time axis; best: the best fixed limit, 0 for unknown."""
    seconds = max((run.ticks[-1].at for run in runs.values() if run.ticks), default=1.0)
    across = Scale(0.0, max(seconds, 1.0))
    body, y = [], TOP
    for law, run in runs.items():
        panel, y = _panel(law, run, across, best=best, y=y)
        body += panel
    height = y + BOTTOM - BETWEEN
    size = f'width="{WIDTH}" height="{height}"'
    marks = [_text(_x(mark.at), height - 16, mark.label, anchor="middle") for mark in chart.time_marks(across, count=8)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" {size}/>',
            _text(LEFT, 28, title, style="title"),
            *_legend(best),
            *body,
            *marks,
            "</svg>\n",
        ]
    )


def _panel(law: str, run: VirtualRun, across: Scale, *, best: int, y: int) -> tuple[list[str], int]:
    """Return one law's plots, from y down, and where the next panel begins."""
    made = [_text(LEFT, y + 12, f"{law}: {run.makespan_s:.1f} s, {run.rejections:,} refused", style="law")]
    y += 22
    for track in _tracks(run, across, best=best):
        made += _plot(track, across, y)
        y += track.height + GAP
    return made, y - GAP + BETWEEN


def _tracks(run: VirtualRun, across: Scale, *, best: int) -> tuple[_Track, ...]:
    at = np.array([tick.at for tick in run.ticks])
    limit = np.array([tick.limit for tick in run.ticks])
    in_flight = np.array([tick.in_flight for tick in run.ticks], dtype=np.float64)
    gradient = np.array([np.nan if tick.gradient is None else tick.gradient for tick in run.ticks])
    queue_at, queue = run.queue[:, 0], run.queue[:, 1]
    many, waiting = Scale.over(np.concatenate([limit, in_flight, [best]])), Scale.over(queue, least=4.0)
    ratio = Scale(0.0, max(1.2, float(np.nanmax(gradient)) if np.isfinite(gradient).any() else 0.0))
    limits = [
        ("in-flight", chart.area(across.xs(at), many.ys(in_flight)) if len(at) else ""),
        ("best", chart.level(float(many.ys(np.array([float(best)]))[0])) if best else ""),
        ("limit", _steps(across, many, at, limit)),
    ]
    return (
        _Track("requests", TALL, many, limits),
        _Track("queue", LOW, waiting, [("queue", chart.area(across.xs(queue_at), waiting.ys(queue)))]),
        _Track("gradient", LOW, ratio, [("gradient", chart.line(across.xs(at), ratio.ys(gradient)))]),
    )


def _steps(across: Scale, up: Scale, at: Values, values: Values) -> str:
    return chart.steps(across.xs(at), up.ys(values)) if len(at) else ""


def _plot(track: _Track, across: Scale, y: int) -> list[str]:
    width = WIDTH - LEFT - RIGHT
    made = []
    for mark in chart.y_marks(track.scale, count=4 if track.height == TALL else 2):
        at = y + track.height * mark.at / 100
        made.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        made.append(_text(LEFT - 8, at + 4, mark.label, anchor="end"))
    box = f'x="{LEFT}" y="{y}" width="{width}" height="{track.height}"'
    paths = "".join(f'<path class="{style}" d="{path}"/>' for style, path in track.drawn if path)
    made.append(f'<svg {box} viewBox="0 0 1000 100" preserveAspectRatio="none">{paths}</svg>')
    made.append(f'<rect class="frame" {box}/>')
    made.append(_text(WIDTH - RIGHT, y - 5, track.title, style="unit", anchor="end"))
    return made


def _legend(best: int) -> list[str]:
    words = [
        ("limit", "limit"),
        ("in-flight", "in flight"),
        ("queue", "waiting in the server"),
        ("gradient", "gradient"),
    ]
    words += [("best", f"best fixed limit, {best}")] if best else []
    made, x = [], LEFT
    for style, word in words:
        shape = f"M{x} 42h22v8h-22Z" if style in ("in-flight", "queue") else f"M{x} 46h22"
        made += [f'<path class="{style}" d="{shape}"/>', _text(x + 28, 50, word)]
        x += 28 + 7 * len(word) + 24
    return made


def _x(percent: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * percent / 100


def _text(x: float, y: float, word: str, *, style: str = "", anchor: str = "start") -> str:
    klass = f' class="{style}"' if style else ""
    return f'<text{klass} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(word)}</text>'
