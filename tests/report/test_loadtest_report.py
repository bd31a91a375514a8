"""A load test as text and as a page: what must be in it, what must not, and charts of few or no rows."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from evalpipe.loadtest.calibrate import Twin
from evalpipe.loadtest.capacity import Capacity, Plan, capacity
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.search import carry_out
from evalpipe.loadtest.slo import Slo
from evalpipe.report.loadtest import LEGEND, format_capacity, format_twin, header, row
from evalpipe.report.loadtest_page import LoadPage, collapse_charts, latency_chart, log_scale, render, throughput_chart
from evalpipe.sim.bench import VirtualBench
from evalpipe.sim.profiles import profile

SLO = Slo()


@pytest.fixture(scope="module")
def found() -> Capacity:
    return carry_out(capacity(Plan(SLO, seed=3, quick=True)), VirtualBench(profile("table")).run)


@pytest.fixture(scope="module")
def points(found: Capacity) -> list[Point]:
    """Its rows, and one that the server does not carry."""
    return [*found.points, VirtualBench(profile("table")).run(Probe("open", 35.0, 3.0, 30.0))]


def test_rows_are_at_most_120_columns_and_name_their_verdict(points: list[Point]):
    """Numbers under their heads, the verdict at the end, what the columns mean below."""
    text = "\n".join([header(), *map(row, points), *LEGEND])

    assert max(map(len, text.splitlines())) <= 120
    assert re.search(r"^closed 1 .*steady$", text, re.MULTILINE)
    assert re.search(r"^open 35.00/s .*collapse$", text, re.MULTILINE)
    assert "TTFT counts from the schedule" in text


def test_faults_stand_under_their_row():
    """A note of the checks is not lost in a column."""
    point = VirtualBench(profile("table")).run(Probe("open", 5.0, 2.0, 5.0))
    lines = row(replace(point, notes=("sent late", "loop lag"))).splitlines()

    assert lines[0].startswith("open 5.00/s")
    assert lines[1:] == ["  ! sent late", "  ! loop lag"]


def test_an_unconfirmed_capacity_says_so(found: Capacity):
    """Quick is no promise, in words."""
    assert "NOT confirmed" in format_capacity(found)
    assert "a ceiling, not a promise" in format_capacity(found)


def test_a_twin_comes_with_the_command_that_serves_it():
    """To be pasted as it is."""
    text = format_twin(Twin(0.008, 4e-5, 2e-5, 0.0, 0.005, 64, 150.0, 0.01))

    assert "evalpipe sim serve vllm --set step_s=0.008 --set per_prefill_token_s=4e-05" in text
    assert "--set slots=64" in text


def test_the_page_stands_alone(found: Capacity, points: list[Point]):
    """One file, nothing loaded from elsewhere, below 300 KB, with the numbers, the knee and how it broke."""
    html = render(LoadPage("model <m> at http://h/v1", points, SLO, found.knee, found))

    assert len(html.encode()) < 300_000
    assert not re.search(r"(src|href)=|url\(|@import|<script", html)
    assert "model &lt;m&gt; at" in html
    assert f"knee {found.knee.slo.rate:.1f}" in html
    assert "How it broke" in html
    assert "NOT confirmed" in html


def test_few_rows_are_said_to_be_few(found: Capacity):
    """No line through one point, no chart of nothing."""
    one = [point for point in found.points if point.probe.loop == "open"][:1]

    assert latency_chart(one, LoadPage("x", one, SLO)).empty
    assert throughput_chart(one).empty
    assert collapse_charts(one) == []
    assert "1 rows" in render(LoadPage("x", one, SLO))


def test_the_collapse_is_told_second_by_second(points: list[Point]):
    """Waiting, running, memory, preemptions and tokens of the row that broke."""
    titles = [chart.title for chart in collapse_charts(points)]

    assert titles == ["Waiting", "Running", "Memory", "Preemptions", "Tokens"]


def test_logarithmic_marks_are_round():
    """From 46 ms to 13 s: powers of ten; over less than a decade also 2 and 5."""
    assert [mark.label for mark in log_scale(np.array([46.0, 13_000.0]))[1]] == ["100", "1k", "10k"]
    assert [mark.label for mark in log_scale(np.array([60.0, 300.0]))[1]] == ["50", "100", "200"]
    assert log_scale(np.array([60.0, math.nan]))[0].low < math.log10(60)
