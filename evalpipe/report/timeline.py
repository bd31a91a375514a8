"""The charts of a run over time: limit and what was in flight, what made no progress, speed, first tokens, gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalpipe.report import chart
from evalpipe.report.chart import Chart, Line, Note, Scale, Values
from evalpipe.report.flight import Flight, Move

LIMIT_TITLE = "Limit and in flight"
X_LABEL = "time since control began"
POINTED = ("limit", "in_flight", "overdue", "stalled", "rejected", "tokens_per_s", "ttft_s", "gradient")
PACED_AT = 0.97 * chart.HEIGHT  # a strip along the axis
NOT_RECORDED = "not recorded by the version that ran this"

#: reason -> style of its mark: what made room, what took it away, what waited
GROWING = frozenset({"startup", "warm_start", "resume", "grow", "hold", "bound", "manual"})
WAITING = frozenset({"outage", "stall", "quota"})
MEANING: Mapping[str, str] = {
    "startup": "fast growth until something speaks against it",
    "warm_start": "led to where an earlier run settled",
    "resume": "led to where this run stood before it was resumed",
    "grow": "the server had room",
    "hold": "stayed on purpose",
    "queue": "requests waited at the server: cut to what really ran",
    "collapse": "more in flight delivered less: cut below that level",
    "rejected": "the server refused requests: one cut an episode",
    "timeout": "attempts ran out of time",
    "outage": "attempts failed as soon as they were sent",
    "stall": "nothing came back at all",
    "quota": "a quota of requests or tokens was met",
    "bound": "kept within the bounds of the law",
    "manual": "set by hand",
}


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """How often the limit moved for a reason. style: as of its marks."""

    reason: str
    count: int
    style: str
    meaning: str


def style_of(reason: str) -> str:
    """Return the class of a reason's mark."""
    return "up" if reason in GROWING else "held" if reason in WAITING else "down"


def reason_rows(moves: Sequence[Move]) -> list[ReasonRow]:
    """Count the moves by reason, the most frequent first."""
    counted = Counter(move.reason for move in moves).most_common()
    return [ReasonRow(reason, count, style_of(reason), MEANING.get(reason, "")) for reason, count in counted]


def charts(flight: Flight) -> list[Chart]:
    """Return the charts, all on the same time axis."""
    if len(flight) < 2:
        rows = "one row was" if len(flight) else "nothing was"
        return [Chart(LIMIT_TITLE, "requests", empty=f"{rows} recorded: the run was too short to draw")]
    thin = flight.thinned()
    across = Scale(0.0, max(flight.seconds, 1.0))
    return [draw(thin, across) for draw in (_limit, _stuck, _speed, _first, _slope)]


def pointer_data(flight: Flight) -> dict[str, list[float | None]]:
    """Return what the pointer shows: "at", a share of the axis, and the values by key of the lines."""
    if len(flight) < 2:
        return {}
    thin = flight.thinned()
    told = {"at": thin.at / max(flight.seconds, 1.0)}
    told |= {name: thin.columns[name] for name in POINTED}
    told |= {f"shadow-{index}": values for index, values in enumerate(thin.shadows.values())}
    return {name: _plain(values) for name, values in told.items()}


def _limit(flight: Flight, across: Scale) -> Chart:
    limit, in_flight = flight.columns["limit"], flight.columns["in_flight"]
    up = Scale.over(np.concatenate([limit, in_flight, *flight.shadows.values()]))
    xs = across.xs(flight.at)
    lines = [
        Line("inflight", chart.area(xs, up.ys(in_flight)), "area", "in flight", "in_flight"),
        Line("limit", chart.steps(xs, up.ys(limit)), "line", "limit", "limit"),
    ]
    lines += [
        Line(f"shadow s{index % 3}", chart.steps(xs, up.ys(values)), "line", f"{name} (shadow)", f"shadow-{index}")
        for index, (name, values) in enumerate(flight.shadows.items())
    ]
    if (flight.columns["is_paced"] > 0).any():
        held = np.where(flight.columns["is_paced"] > 0, PACED_AT, np.nan)
        lines.append(Line("paced", chart.line(xs, held), "line", "held back by a quota"))
    cuts = [move for move in flight.moves if style_of(move.reason) != "up"]
    notes = [Note(100.0 * across.share(move.at), move.reason, style_of(move.reason)) for move in cuts]
    return _over_time(LIMIT_TITLE, "requests", [*_reason_marks(flight, across), *lines], across, up, flight, notes)


def _reason_marks(flight: Flight, across: Scale) -> list[Line]:
    """Short strokes at the top: growth reaches less far down than what cuts or waits."""
    made = []
    for style, bottom in (("up", 4.0), ("down", 10.0), ("held", 10.0)):
        at = sorted({round(across.share(m.at) * chart.WIDTH) for m in flight.moves if style_of(m.reason) == style})
        made.append(Line(f"mark {style}", chart.rules(at, bottom=bottom), "rule"))
    return [mark for mark in made if mark.path]


def _stuck(flight: Flight, across: Scale) -> Chart:
    names = {"overdue": "first token overdue", "stalled": "stream stalled", "rejected": "rejected"}
    values = {name: flight.columns[name] for name in names}
    up = Scale.over(np.concatenate(list(values.values())), least=4.0)
    xs = across.xs(flight.at)
    lines = [
        Line("overdue", chart.area(xs, up.ys(values["overdue"])), "area", names["overdue"], "overdue"),
        Line("stalled", chart.steps(xs, up.ys(_seen(values["stalled"]))), "line", names["stalled"], "stalled"),
        Line("rejected", chart.dots(xs, up.ys(_seen(values["rejected"]))), "dots", names["rejected"], "rejected"),
    ]
    return _over_time("Work without progress", "requests", lines, across, up, flight)


def _seen(values: Values) -> Values:
    """Leave out zeros: what never happened draws no line."""
    return np.where(values > 0, values, np.nan)


def _speed(flight: Flight, across: Scale) -> Chart:
    return _single(flight, across, "tokens_per_s", "Output", "tokens per second")


def _first(flight: Flight, across: Scale) -> Chart:
    return _single(flight, across, "ttft_s", "Time to first token", "seconds, median")


def _slope(flight: Flight, across: Scale) -> Chart:
    values = flight.columns["gradient"]
    up = Scale.over(np.append(values, 1.0))
    one = Line("one", chart.level(up.y(1.0)), "level")
    return _single(flight, across, "gradient", "Congestion gradient", "baseline / recent, 1 is idle", up, one)


def _single(
    flight: Flight, across: Scale, name: str, title: str, unit: str, up: Scale | None = None, *below: Line
) -> Chart:
    values = flight.columns[name]
    if not np.isfinite(values).any():
        return Chart(title, unit, empty=NOT_RECORDED if name == "ttft_s" else "nothing was measured")
    up, xs, style = up or Scale.over(values), across.xs(flight.at), name.partition("_")[0]
    drawn = [
        Line(f"{style} raw", chart.line(xs, up.ys(values))),
        Line(style, chart.line(xs, up.ys(smooth(values))), "line", title, name),
    ]
    return _over_time(title, unit, [*below, *drawn], across, up, flight)


def smooth(values: Values) -> Values:
    """Return the mean over a fortieth of the values, at most eleven; what is not finite stays so."""
    reach = min(len(values) // 80, 5)
    known = np.isfinite(values)
    window = np.ones(2 * reach + 1)
    total = np.convolve(np.where(known, values, 0.0), window, "same")
    count = np.convolve(known.astype(np.float64), window, "same")
    return np.where(known, total / np.maximum(count, 1.0), np.nan)


def _over_time(
    title: str,
    unit: str,
    lines: Sequence[Line],
    across: Scale,
    up: Scale,
    flight: Flight,
    notes: Sequence[Note] = (),
) -> Chart:
    begins = chart.rules([across.share(at) * chart.WIDTH for at in flight.begins])
    label = "another driver or controller" if title == LIMIT_TITLE else ""  # said once
    return Chart(
        title,
        unit,
        lines=[*lines, *([Line("begin", begins, "rule", label)] if begins else [])],
        x_marks=chart.time_marks(across),
        y_marks=chart.y_marks(up, count=4),
        notes=chart.spread(notes),
        x_label=X_LABEL,
        is_over_time=True,
    )


def _plain(values: Values) -> list[float | None]:
    """Return numbers of four digits, None for what was not measured."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values.tolist()]
