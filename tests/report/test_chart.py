"""Charts: round axes, paths with gaps where nothing was measured, and labels that keep apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.report import chart
from evalpipe.report.chart import Mark, Note, Scale

NAN = float("nan")


def array(*values: float) -> chart.Values:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (array(3.0, 97.0), 0.0, 100.0),
        (array(0.02, NAN, 0.61), 0.0, 0.8),
        (array(7.0, 7.0), 0.0, 8.0),
        (array(0.0), 0.0, 4.0),
        (array(), 0.0, 1.0),
        (array(NAN), 0.0, 1.0),
    ],
)
def test_an_axis_begins_at_zero_and_ends_at_a_round_number(values: chart.Values, low: float, high: float):
    """Also where nothing was measured, or one value only."""
    scale = Scale.over(values, least=4.0 if list(values) == [0.0] else 1e-9)

    assert (scale.low, scale.high) == pytest.approx((low, high))


def test_an_axis_without_a_floor_begins_at_a_round_number_too():
    """64 to 69 are drawn from 64 to 70."""
    assert Scale.over(array(64.3, 69.0), floor=None) == Scale(64.0, 70.0)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_marks_are_few_and_inside(low: float, width: float):
    """Two to six labels, each within the plot."""
    scale = Scale.over(array(low, low + width), floor=None)

    marks = chart.y_marks(scale)

    assert 2 <= len(marks) <= 6
    assert all(-0.01 <= mark.at <= 100.01 for mark in marks)


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (1.0, ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1 s"]),
        (215.9, ["0", "1 min", "2 min", "3 min"]),
        (90.0, ["0", "30 s", "1 min", "1 min 30 s"]),
        (20_000.0, ["0", "2 h", "4 h"]),
    ],
)
def test_time_is_marked_at_round_times(seconds: float, labels: list[str]):
    """Five steps at most, of seconds, minutes or hours."""
    assert [mark.label for mark in chart.time_marks(Scale(0.0, seconds))] == labels


def test_marks_go_down_from_the_top():
    """The largest value is at 0 % from the top."""
    assert chart.y_marks(Scale(0.0, 2.0), count=2) == [Mark(100.0, "0"), Mark(50.0, "1"), Mark(0.0, "2")]


def test_a_line_has_a_gap_where_nothing_was_measured():
    """A value alone between gaps is a dot."""
    path = chart.line(array(0, 1, 2, 3, 4), array(5, 6, NAN, 7, NAN))

    assert path == "M0 5L1 6M3 7h0"


def test_a_step_keeps_its_value_until_the_next():
    """No corner is drawn where the value stays."""
    assert chart.steps(array(0, 1, 2), array(5, 5, 8)) == "M0 5L1 5L2 5L2 8"


def test_an_area_closes_at_the_axis():
    """A run of one point has no area."""
    assert chart.area(array(0, 1, 2, 3), array(5, 6, NAN, 7)) == "M0 5L1 5L1 6V100H0Z"


def test_dots_rules_and_levels_are_strokes():
    """Dots have no length: round ends make them, whatever the plot's proportions."""
    assert chart.dots(array(1, 2), array(3, NAN)) == "M1 3h0"
    assert chart.rules([1.04, 2.0], bottom=10) == "M1 0V10M2 0V10"
    assert chart.level(33.333) == "M0 33.3H1000"


def test_notes_that_would_overlap_are_left_out():
    """The first of two neighbours stays; with two rows the second goes below."""
    notes = [Note(50.0, "late"), Note(1.0, "first"), Note(5.0, "second")]

    assert [note.label for note in chart.spread(notes)] == ["first", "late"]
    assert [(note.label, note.row) for note in chart.spread(notes, rows=2)] == [
        ("first", 0),
        ("second", 1),
        ("late", 0),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.25, "0.25"), (45.0, "45"), (1500.0, "1.5k"), (20_000.0, "20k"), (999_999.0, "1M"), (-2e6, "-2M")],
)
def test_numbers_are_short(value: float, text: str):
    """At most five characters."""
    assert chart.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (0.5, "0.5 s"),
        (59.0, "59 s"),
        (60, "1 min"),
        (3_600, "1 h"),
        (3_661, "1 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_times_have_two_units_at_most(seconds: float, text: str):
    """Seconds are not told beside hours."""
    assert chart.duration(seconds) == text
