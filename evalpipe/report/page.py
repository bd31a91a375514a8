"""report.html: one self-contained page of a run. Nothing is loaded from anywhere, and it reads without its script.

What a stored run holds is read by report/source.py; the charts are made by timeline.py and latency.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evalpipe.report import chart
from evalpipe.report.chart import Chart, Line, Note, Scale
from evalpipe.report.facts import bound_sentence, facts, failure_rows, score_rows, verdict
from evalpipe.report.latency import Curve, curve_of
from evalpipe.report.source import Stored, read_run
from evalpipe.report.timeline import charts, pointer_data, reason_rows
from evalpipe.store.log import read_state
from evalpipe.store.objects import ObjectStore

KEY = "report.html"
NARROW = 0.4  # levels that all lie above this share of the largest are not drawn from zero


def write_page(store: ObjectStore, summary: Mapping[str, Any]) -> str:
    """Write report.html of a run and return its key. summary: as in summary.json. Raises StateError, OSError."""
    store.put(KEY, render(read_run(store, read_state(store), summary)).encode())
    return KEY


def render(run: Stored) -> str:
    """Return the page."""
    bound_by = run.summary.get("bound_by", "")
    return (
        _environment()
        .get_template("page.html")
        .render(
            run=run.name,
            verdict=verdict(run.summary),
            facts=facts(run),
            bound_by=bound_by,
            bound_sentence=bound_sentence(bound_by),
            scores=score_rows(run.summary),
            charts=charts(run.flight),
            reasons=reason_rows(run.flight.moves),
            latency=latency_chart(curve_of(run.attempts)),
            failures=failure_rows(run),
            note=run.note,
            pointer=orjson.dumps(pointer_data(run.flight)).decode(),
        )
    )


def latency_chart(curve: Curve | None) -> Chart:
    """Draw latency against requests in flight, with what is known of it marked."""
    title, unit = "Latency against requests in flight", "seconds"
    if curve is None:
        return Chart(title, unit, empty="fewer than 20 answers: too few to draw")
    first = curve.first_rejection
    shown = np.append(curve.in_flight, [] if first is None else [first])
    across = Scale.over(shown, floor=None if shown.min() > NARROW * shown.max() else 0.0)
    up = Scale.over(curve.p99_s)
    xs = across.xs(curve.in_flight)
    at = {"knee": curve.knee, "first rejection": curve.first_rejection}
    marks = {name: 100.0 * across.share(value) for name, value in at.items() if value is not None}
    lines = [
        Line("baseline", chart.level(up.y(curve.baseline_s)), "level", f"baseline {curve.baseline_s:.2f} s"),
        *(Line(name.split()[0], chart.rules([10.0 * place]), "rule") for name, place in marks.items()),
        Line("p99", chart.line(xs, up.ys(curve.p99_s)), "line", "P99"),
        Line("p50", chart.line(xs, up.ys(curve.p50_s)), "line", "P50"),
        Line("p99", chart.dots(xs, up.ys(curve.p99_s)), "dots"),
        Line("p50", chart.dots(xs, up.ys(curve.p50_s)), "dots"),
    ]
    notes = chart.spread(
        [Note(place, f"{name} {at[name]:.0f}", name.split()[0]) for name, place in marks.items()], rows=2
    )
    across_label = "in flight when the request left"
    return Chart(title, unit, lines, chart.x_marks(across), chart.y_marks(up), notes, across_label)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("evalpipe.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["breakable"] = breakable
    return environment


def breakable(name: str) -> Markup:
    """Let a name wrap after its underscores, and where there is none, nowhere."""
    return Markup("_<wbr>").join(name.split("_"))
