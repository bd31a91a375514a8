"""A load test as plain text, at most 120 columns: rows as they come, and what the server can carry. No printing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evalpipe.loadtest.calibrate import Twin
from evalpipe.loadtest.capacity import Capacity
from evalpipe.loadtest.knee import Estimate, Knee
from evalpipe.loadtest.probe import Point, Probe

LABEL_WIDTH = 14
HEADER = ("req/s", "tok/s", "TTFT P50", "P99", "sent P99", "TPOT P99", "E2E P99", "in flight", "errors", "preempt")
WIDTHS = (7, 8, 9, 8, 9, 9, 9, 10, 7, 8)
LEGEND = (
    "TTFT counts from the schedule, sent P99 from the send; times in ms; in flight: mean; errors: of the requests;",
    "preempt: preemptions per request taken in; req/s of a closed loop is R = N / T: 64 users are not 64 requests/s.",
)


def header() -> str:
    return _line("", HEADER) + "  verdict"


def row(point: Point) -> str:
    """One line for one test, its faults under it."""
    notes = [f"  ! {note}" for note in point.notes]
    return "\n".join([f"{_line(label(point), cells(point))}  {point.verdict.value}", *notes])


def label(point: Point) -> str:
    return probe_label(point.probe)


def probe_label(probe: Probe) -> str:
    return f"closed {probe.level:.0f}" if probe.loop == "closed" else f"open {probe.level:.2f}/s"


def format_capacity(found: Capacity) -> str:
    """Return what the server can carry, in four lines."""
    ceiling = found.ceiling
    promise = "confirmed with three seeds" if found.is_confirmed else "NOT confirmed: a measurement, not a promise"
    return "\n".join(
        [
            f"closed-loop ceiling {ceiling.rate:.1f} req/s with {ceiling.users} users (a ceiling, not a promise)",
            format_knee(found.knee),
            _recovery(found),
            f"recommended: {found.rate:.1f} req/s and at most {found.in_flight} in flight"
            f" ({found.factor:g} of the lower bound; {found.tokens_per_s:,.0f} output tok/s); {promise}",
        ]
    )


def format_knee(knee: Knee) -> str:
    return f"SLO knee {_rate(knee.slo)}{_binding(knee.binding)}; stability knee {_rate(knee.stability)}; {knee.kind}"


def format_twin(twin: Twin) -> str:
    """Return the costs, and the command that serves the twin."""
    slots = "no limit met" if twin.slots is None else f"{twin.slots} at a time"
    options = " ".join(f"--set {name}={value:.6g}" for name, value in twin.options().items())
    return "\n".join(
        [
            f"a step: {1000 * twin.step_s:.2f} ms, a prompt token {1e6 * twin.per_prefill_token_s:.1f} us, a sequence"
            f" {1e6 * twin.per_seq_s:.1f} us and {1e6 * twin.per_seq_squared_s:.3f} us times their number; {slots}",
            f"a request: {1000 * twin.overhead_s:.1f} ms before the model; fit of TPOT to {100 * twin.error:.1f} %",
            f"its twin: evalpipe sim serve vllm {options}",
        ]
    )


def _rate(each: Estimate) -> str:
    if each.is_bound:
        return f"above {each.rate:.1f} req/s"
    return f"{each.rate:.1f} req/s (90 %: {each.low:.1f} to {each.high:.1f})"


def _binding(name: str) -> str:
    return f", bound by {name}" if name else ""


def _recovery(found: Capacity) -> str:
    if found.recovery_s is not None:
        slow = ": hysteresis, the cap in flight is part of the promise" if found.has_hysteresis else ""
        return f"20 s of 1.3 times the knee: good again after {found.recovery_s:.0f} s{slow}"
    if found.has_hysteresis:
        return "20 s of 1.3 times the knee: not good again within the test; the cap in flight is part of the promise"
    return "recovery was not tried"


def cells(point: Point) -> Sequence[str]:
    row = point.measures
    rate = row.preemption_rate
    return (
        f"{row.requests_per_s:.1f}",
        f"{row.output_tokens_per_s:,.0f}",
        _ms(row.ttft.seconds(50.0)),
        _ms(row.ttft.seconds(99.0)),
        _ms(row.ttft_sent.seconds(99.0)),
        _ms(row.tpot.seconds(99.0), digits=1),
        _ms(row.e2e.seconds(99.0)),
        f"{row.in_flight:.1f}",
        f"{100 * row.error_share:.1f}%",
        "-" if rate is None else f"{100 * rate:.1f}%",
    )


def _ms(seconds: float, *, digits: int = 0) -> str:
    return "-" if math.isnan(seconds) else f"{1000 * seconds:,.{digits}f}"


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name:<{LABEL_WIDTH}}" + "".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
