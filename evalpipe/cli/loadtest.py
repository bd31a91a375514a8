"""`evalpipe loadtest`: rows at given levels, a sweep, or the whole way to a capacity that can be promised."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from evalpipe.cli.loadtest_options import Common, with_common
from evalpipe.errors import ConfigError, EvalPipeError

if TYPE_CHECKING:
    from evalpipe.loadtest.calibrate import Twin
    from evalpipe.loadtest.capacity import Capacity
    from evalpipe.loadtest.knee import Knee
    from evalpipe.loadtest.probe import Point, Probe
    from evalpipe.loadtest.procedures import Sweep
    from evalpipe.runtime.load_test import LoadTest

T = TypeVar("T")

app = typer.Typer(help="What a server can carry: closed loop, open loop, knee and capacity.", no_args_is_help=True)

Warmup = Annotated[float, typer.Option(help="Seconds before a row is measured.", min=0)]
Duration = Annotated[float, typer.Option(help="Seconds a row is measured.", min=1)]


@app.command("closed")
@with_common
def closed(
    common: Common,
    users: Annotated[str, typer.Option(metavar="N,N,..|auto", help="Users; auto doubles from 1 on.")] = "auto",
    warmup: Warmup = 15.0,
    duration: Duration = 60.0,
) -> None:
    """Users who each wait for their answer: a ceiling, not a promise."""
    from evalpipe.loadtest.procedures import closed_rows

    counts = [] if users == "auto" else [int(count) for count in _numbers(users, flag="--users")]
    procedure = closed_rows(counts, warmup_s=warmup, duration_s=duration, seed=common.seed)
    _execute(common, procedure, _rows_only)


@app.command("open")
@with_common
def open_loop(
    common: Common,
    rate: Annotated[str, typer.Option(metavar="R,R,..", help="Requests a second.")],
    warmup: Warmup = 15.0,
    duration: Duration = 60.0,
) -> None:
    """Requests that come whatever the server does: what a service meets. TTFT counts from the schedule."""
    from evalpipe.loadtest.procedures import open_rows

    rates = _numbers(rate, flag="--rate")
    _execute(common, open_rows(rates, warmup_s=warmup, duration_s=duration, seed=common.seed), _rows_only)


@app.command("sweep")
@with_common
def sweep(
    common: Common,
    rate: Annotated[str, typer.Option(metavar="R,R,..|auto", help="auto: around a closed-loop ceiling.")] = "auto",
    warmup: Warmup = 10.0,
    duration: Duration = 45.0,
) -> None:
    """Open loops over a range of rates, and the knee that they bracket: no promise, nothing is confirmed."""
    from evalpipe.loadtest.capacity import Plan
    from evalpipe.loadtest.procedures import sweep as sweep_rates

    plan = Plan(common.limits(), seed=common.seed, bracket_s=duration, warmup_s=warmup)
    rates = [] if rate == "auto" else _numbers(rate, flag="--rate")
    _execute(common, sweep_rates(plan, rates), _swept)


@app.command("capacity")
@with_common
def capacity(
    common: Common,
    quick: Annotated[bool, typer.Option("--quick", help="Six minutes: the knee to 10 %, nothing confirmed.")] = False,
) -> None:
    """The rate and the requests in flight to promise: ladder, bracket, probes, confirmation, recovery; half an hour."""
    from evalpipe.loadtest.capacity import Plan
    from evalpipe.loadtest.capacity import capacity as find_capacity

    plan = Plan(common.limits(), seed=common.seed, quick=quick)
    _execute(common, find_capacity(plan), _found)


@app.command("calibrate")
@with_common
def calibrate(common: Common) -> None:
    """Read the costs of a server off a closed-loop ladder, for a simulated twin to rehearse on; five minutes."""
    from evalpipe.loadtest.calibrate import calibrate as fit_twin

    if common.dataset is not None or common.prompt_sigma:
        raise ConfigError("calibrate needs prompts of one length: no --dataset and no --prompt-sigma")
    _execute(common, fit_twin(prompt_tokens=common.prompt_tokens, seed=common.seed), _fitted)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a procedure came to: its JSON, the text that ends the table, and what the page marks."""

    body: dict[str, Any]
    text: str = ""
    knee: Knee | None = None
    capacity: Capacity | None = None


def _rows_only(points: list[Point]) -> Conclusion:
    return Conclusion({"points": [point.to_dict() for point in points]})


def _swept(found: Sweep) -> Conclusion:
    from evalpipe.report.loadtest import format_knee

    body = {**found.knee.to_dict(), "points": [point.to_dict() for point in found.points]}
    return Conclusion(body, format_knee(found.knee), found.knee)


def _found(found: Capacity) -> Conclusion:
    from evalpipe.report.loadtest import format_capacity

    return Conclusion(found.to_dict(), format_capacity(found), found.knee, found)


def _fitted(twin: Twin) -> Conclusion:
    from evalpipe.report.loadtest import format_twin

    return Conclusion(twin.to_dict(), format_twin(twin))


def _execute(common: Common, procedure: Generator[Probe, Point, T], conclude: Callable[[T], Conclusion]) -> None:
    """Carry the procedure out, show and store each row, leave with the exit code; Ctrl-C keeps the rows there are."""
    from evalpipe.cli.loadtest_display import make_load_display
    from evalpipe.loadtest.search import carry_out
    from evalpipe.runtime.load_bench import Interrupted
    from evalpipe.runtime.load_test import open_load_test

    display = make_load_display(common.display)
    points: list[Point] = []

    def on_row(point: Point) -> None:
        points.append(point)
        display.row(point)

    with (
        closing(display),
        open_load_test(common.config(), common.load_settings(), on_probe=display.begin, on_row=on_row) as test,
    ):
        try:
            found = conclude(carry_out(procedure, test.bench.run))
        except (Interrupted, EvalPipeError) as stopped:
            rows = _rows_only(points)
            test.files.finish({**rows.body, "stopped": str(stopped)}, _page(test, points, rows))
            print(f"{len(points)} rows are kept: {test.files.url}", file=sys.stderr)
            if isinstance(stopped, Interrupted):
                raise typer.Exit(test.signals.exit_code) from None
            raise
        test.files.finish(found.body, _page(test, points, found))
    _conclude(common, found, url=test.files.url)


def _conclude(common: Common, found: Conclusion, *, url: str) -> None:
    """Print the end of a test: a last JSON line, the whole result as JSON, or words."""
    from evalpipe.report.loadtest import LEGEND

    if common.display == "json":
        print(json.dumps({"event": "result", **found.body}))
    elif common.as_json:
        print(json.dumps(found.body, indent=2))
    else:
        print("\n".join([*([] if common.display == "none" else LEGEND), *([found.text] if found.text else [])]))
        print(f"results: {url}/result.json  page: {url}/report.html")


def _page(test: LoadTest, points: list[Point], found: Conclusion) -> str:
    from evalpipe.report.loadtest_page import LoadPage, render

    title = f"{test.looked.model} at {test.looked.base_url}"
    return render(LoadPage(title, points, test.slo, found.knee, found.capacity))


def _numbers(text: str, *, flag: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0:
        raise ConfigError(f"{flag} takes numbers above 0 with commas between, got {text!r}")
    return numbers
