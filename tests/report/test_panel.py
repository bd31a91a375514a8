"""The plain line, the moves of the limit and the panel: what a person sees while a run goes on."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from evalpipe.control.core import TimedChange
from evalpipe.control.law import Evidence, LimitChange
from evalpipe.report.panel import SHOWN_CHANGES, change_line, panel, plain_line, shadow_line
from evalpipe.runtime.progress import Progress

PROGRESS = Progress(
    elapsed_s=30.0,
    expected=5000,
    ok=1490,
    failed=10,
    finished=1500,
    answered=1490,
    correct=1043,
    scored=1490,
    retries=7,
    output_tokens=400_000,
    failures={"too_long": 3, "bad_request": 7},
    requests_per_s=35.0,
    tokens_per_s=7012.4,
    limit=63.9,
    mean_limit=50.0,
    mean_in_flight=48.0,
    in_flight=62,
    waiting=4,
    gradient=0.8349,
    p50_s=1.5,
    p99_s=9.876,
    workers=2,
    bound_by="server",
)
NOTHING_YET = replace(
    PROGRESS, ok=0, failed=0, scored=0, failures={}, requests_per_s=0.0, gradient=None, p50_s=None, p99_s=None
)
CHANGE = LimitChange(64.0, 44.8, "queue", Evidence(0.01, 0.025, 0.4, samples=32, per_work=True))


def shown(progress: Progress, changes: list[TimedChange], *, width: int = 110) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, color_system=None)
    console.print(panel(progress, changes, name="evalpipe"))
    return console.export_text()


def test_the_plain_line_says_it_all():
    """Progress, accuracy with its interval, limit, gradient, speed, latency, failures by kind, time left, the bound."""
    assert plain_line(PROGRESS) == (
        "1500/5000 30% | acc 0.700 [0.676, 0.723] | limit 64 (62 in flight, 4 waiting) | gradient 0.83"
        " | 35.0 items/s 7,012 tok/s | p50 1.50 s p99 9.88 s | retries 7 failed 10 (bad_request 7, too_long 3)"
        " | eta 1m40s | bound by: server"
    )


def test_what_is_not_known_is_a_dash():
    """Before the first answer there is no accuracy of zero and no latency of zero."""
    line = plain_line(NOTHING_YET)

    assert "0/5000 0% | acc - |" in line
    assert "gradient - |" in line
    assert "p50 - p99 - |" in line
    assert "eta - |" in line


@pytest.mark.parametrize(
    ("rate", "text"),
    [(3500.0, "1s"), (60.0, "58s"), (58.7, "1m00s"), (35.0, "1m40s"), (0.9723, "1h00m"), (0.09, "10h48m")],
)
def test_time_left_reads_well(rate: float, text: str):
    """Seconds, minutes and seconds, hours and minutes; never 60 of anything."""
    assert f"| eta {text} |" in plain_line(replace(PROGRESS, requests_per_s=rate))


def test_a_run_of_nothing_divides_by_nothing():
    """An empty run has a line too."""
    assert plain_line(replace(NOTHING_YET, expected=0)).startswith("0/0 0% |")


def test_a_move_shows_its_numbers():
    """When, from, to, why, and what was measured."""
    assert change_line(TimedChange(12.34, CHANGE)) == (
        "   12.3 s  limit   64.0 ->   44.8  queue     gradient 0.40, 10.0 -> 25.0 ms per unit of work, 32 samples"
    )


def test_a_move_without_measurements_shows_none():
    """No gradient of 0.00 where nothing was measured; a law's own state is told."""
    bare = LimitChange(16.0, 8.0, "rejected", Evidence(state="backoff"))

    assert change_line(TimedChange(0.0, bare)).endswith("rejected  backoff")


def test_the_panel_shows_figures_moves_and_bound():
    """Everything of the plain line, and the moves of the limit below it."""
    text = shown(PROGRESS, [TimedChange(1.0, CHANGE)])

    for part in ("1,500 of 5,000", "accuracy 0.700", "limit 64", "gradient 0.83", "bad_request 7", "64.0 ->   44.8"):
        assert part in text
    assert "bound by: server" in text


def test_the_panel_keeps_the_last_moves():
    """It does not grow out of the screen."""
    changes = [TimedChange(float(second), CHANGE) for second in range(20)]

    text = shown(PROGRESS, changes)

    assert text.count("->   44.8") == SHOWN_CHANGES
    assert "   19.0 s" in text and "   13.0 s" not in text


def test_a_narrow_terminal_does_not_break_it():
    """Lines are cut, not wrapped into each other, and nothing raises."""
    text = shown(PROGRESS, [TimedChange(1.0, CHANGE)], width=40)

    assert all(len(line) <= 40 for line in text.splitlines())


def test_shadow_laws_have_a_line_of_their_own():
    """Named, with their limits, and marked as not obeyed; without shadows there is no line."""
    progress = replace(PROGRESS, shadows={"aimd": 45.2, "gradient": 81.6})

    assert shadow_line(progress) == "shadow, not obeyed: aimd 45  gradient 82"
    assert "shadow, not obeyed: aimd 45  gradient 82" in shown(progress, [])
    assert "shadow" not in shown(PROGRESS, [])
