"""One self-contained page of a load test: rate against latency, throughput against concurrency, and how it broke.

The same charts and style as a run's page (report/page.py). Latencies have a logarithmic axis: a collapse is a hundred
times slower than a busy server, and both must be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from evalpipe.loadtest.capacity import Capacity
from evalpipe.loadtest.knee import Knee
from evalpipe.loadtest.probe import Point
from evalpipe.loadtest.slo import Slo
from evalpipe.report import chart
from evalpipe.report.chart import Chart, Line, Mark, Note, Scale, Values
from evalpipe.report.loadtest import HEADER, cells, format_capacity, format_knee, label

DECADES_MS = tuple(factor * 10.0**power for power in range(6) for factor in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class LoadPage:
    """What a page shows. title: of the server. knee, capacity: None where there is none."""

    title: str
    points: Sequence[Point]
    slo: Slo
    knee: Knee | None = None
    capacity: Capacity | None = None


def render(page: LoadPage) -> str:
    """Return the page as HTML."""
    usable = [point for point in page.points if point.is_usable]
    return (
        _environment()
        .get_template("loadtest.html")
        .render(
            title=page.title,
            headline=_headline(page),
            sentences=_sentences(page),
            charts=[
                latency_chart(usable, page),
                throughput_chart(usable),
            ],
            collapse=collapse_charts(page.points),
            header=HEADER,
            rows=[(label(point), cells(point), point.verdict.value, point.notes) for point in page.points],
        )
    )


def latency_chart(points: Sequence[Point], page: LoadPage) -> Chart:
    """Draw TTFT P50 and P99 against the rate, with the SLO and the knee marked."""
    title, unit = "First token against rate", "ms from the schedule, logarithmic"
    opened = sorted((p for p in points if p.probe.loop == "open" and not p.probe.spike), key=lambda p: p.probe.level)
    opened = [point for point in opened if point.measures.ttft.count]
    if len(opened) < 2:
        return Chart(title, unit, empty="fewer than two open-loop rows")
    rates = np.array([point.probe.level for point in opened])
    p50, p99 = (np.array([1000 * p.measures.ttft.seconds(q) for p in opened]) for q in (50.0, 99.0))
    limit_ms = None if page.slo.ttft_s is None else 1000 * page.slo.ttft_s
    across = Scale.over(rates, floor=None if rates.min() > 0.4 * rates.max() else 0.0)
    shown = np.concatenate([p50, p99, [] if limit_ms is None else [limit_ms]])
    up, marks = log_scale(shown)
    xs, ys99, ys50 = across.xs(rates), up.ys(np.log10(p99)), up.ys(np.log10(p50))
    lines = [
        Line("p99", chart.line(xs, ys99), "line", "P99"),
        Line("p50", chart.line(xs, ys50), "line", "P50"),
        Line("p99", chart.dots(xs, ys99), "dots"),
        Line("p50", chart.dots(xs, ys50), "dots"),
    ]
    if limit_ms is not None:
        slo_label = f"SLO {limit_ms:.0f} ms"
        lines.insert(0, Line("baseline", chart.level(up.y(math.log10(limit_ms))), "level", slo_label))
    notes = []
    if page.knee is not None:
        place = 100.0 * across.share(page.knee.slo.rate)
        lines.insert(0, Line("knee", chart.rules([10.0 * place]), "rule"))
        notes = [Note(place, f"knee {page.knee.slo.rate:.1f}", "knee")]
    return Chart(title, unit, lines, chart.x_marks(across), marks, notes, "requests a second")


def throughput_chart(points: Sequence[Point]) -> Chart:
    """Draw tokens/s against what was in flight, both loops on one axis."""
    title, unit = "Throughput against requests in flight", "output tokens a second"
    measured = [point for point in points if not point.probe.spike and point.measures.in_flight > 0]
    if len(measured) < 2:
        return Chart(title, unit, empty="fewer than two rows")
    across = Scale.over(np.array([point.measures.in_flight for point in measured]))
    up = Scale.over(np.array([point.measures.output_tokens_per_s for point in measured]))
    lines = []
    for loop, style, name in (("closed", "p50", "closed loop"), ("open", "p99", "open loop")):
        rows = sorted((p for p in measured if p.probe.loop == loop), key=lambda p: p.measures.in_flight)
        xs = across.xs(np.array([point.measures.in_flight for point in rows]))
        ys = up.ys(np.array([point.measures.output_tokens_per_s for point in rows]))
        if len(rows):
            lines += [Line(style, chart.line(xs, ys), "line", name), Line(style, chart.dots(xs, ys), "dots")]
    return Chart(title, unit, lines, chart.x_marks(across), chart.y_marks(up), (), "in flight, mean")


def collapse_charts(points: Sequence[Point]) -> list[Chart]:
    """Draw the worst row (an open one if any) second by second: what waits, what is thrown out, what still comes."""
    broken = [point for point in points if point.timeline and point.verdict.is_over]
    if not broken:
        return []
    worst = min(broken, key=lambda point: (point.probe.loop != "open", point.measures.output_tokens_per_s))
    moments = worst.timeline
    memory = [math.nan if moment.kv_used is None else moment.kv_used for moment in moments]
    at = np.array([moment.at for moment in moments])
    series = (
        ("Waiting", "requests at the server", "inflight", [moment.waiting for moment in moments]),
        ("Running", "requests at the server", "inflight", [moment.running for moment in moments]),
        ("Memory", "share of the KV cache", "gradient", memory),
        ("Preemptions", "a second", "rejected", [moment.preemptions for moment in moments]),
        ("Tokens", "output tokens a second", "tokens", [moment.tokens_per_s for moment in moments]),
    )
    return [_over_time(title, unit, style, at, np.array(values)) for title, unit, style, values in series]


def _over_time(title: str, unit: str, style: str, at: Values, values: Values) -> Chart:
    if not np.isfinite(values).any():
        return Chart(title, unit, empty="the server does not tell it")
    across, up = Scale(0.0, float(at.max())), Scale.over(values, least=1.0)
    path = chart.line(across.xs(at), up.ys(values))
    return Chart(title, unit, [Line(style, path)], chart.time_marks(across), chart.y_marks(up, count=3))


def log_scale(values: Values) -> tuple[Scale, list[Mark]]:
    """Return a scale of log10 of positive milliseconds, and marks at 1, 2, 5, 10 .. of them (1, 10 .. where many)."""
    finite = values[np.isfinite(values) & (values > 0)]
    low, high = float(finite.min()), float(finite.max())
    scale = Scale(math.log10(low / 1.3), math.log10(high * 1.3))
    inside = [value for value in DECADES_MS if low / 1.3 <= value <= high * 1.3]
    if len(inside) > 7:
        inside = [value for value in inside if math.log10(value).is_integer()]
    marks = [Mark(round(100.0 * (1.0 - scale.share(math.log10(value))), 2), chart.number(value)) for value in inside]
    return scale, marks


def _headline(page: LoadPage) -> str:
    if page.capacity is not None:
        return f"{page.capacity.rate:.1f} requests/s, at most {page.capacity.in_flight} in flight"
    if page.knee is not None:
        return f"knee at {page.knee.rate:.1f} requests/s"
    return f"{len(page.points)} rows"


def _sentences(page: LoadPage) -> list[str]:
    if page.capacity is not None:
        lines = format_capacity(page.capacity).splitlines()
    else:
        lines = [] if page.knee is None else [format_knee(page.knee)]
    return [line[0].upper() + line[1:] for line in lines]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("evalpipe.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
