"""The picture of a race: well-formed, alone, and showing what happened."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from evalpipe.control.build import build_law
from evalpipe.report.race_plot import plot
from evalpipe.sim.course import Course
from evalpipe.sim.profiles import profile
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs() -> dict[str, VirtualRun]:
    """Two laws on the default server."""
    course = Course("vllm", profile("vllm"), 400)
    return {law: run_virtual(build_law(law), course.server(0), course.draw(0)) for law in ("gradient", "aimd")}


def words(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_each_law_has_its_plots(runs: dict[str, VirtualRun]):
    """Three plots a law, each with lines in it, under its name and its makespan."""
    root = ElementTree.fromstring(plot("64 slots #0", runs, best=64))

    plots = root.findall(f"{SVG}svg")
    assert len(plots) == 6
    assert all(list(inner) for inner in plots)
    assert [word for word in words(root) if word.startswith(("gradient:", "aimd:"))] == [
        f"{law}: {run.makespan_s:.1f} s, 0 refused" for law, run in runs.items()
    ]


def test_the_best_fixed_limit_is_drawn_where_it_is_known(runs: dict[str, VirtualRun]):
    """As a line and in the legend; without one, neither."""
    assert "best fixed limit, 64" in plot("x", runs, best=64)
    assert "best fixed" not in plot("x", runs, best=0)


def test_it_stands_alone(runs: dict[str, VirtualRun]):
    """No script, no link, no picture from elsewhere; names are escaped."""
    text = plot("a < b & c", runs, best=64)

    assert "a &lt; b &amp; c" in text
    assert "<script" not in text
    assert text.count("http") == 1  # the name space


def test_a_run_too_short_for_a_tick_is_drawn_empty():
    """One that ended within half a second has nothing over time, and is no reason to fail."""
    course = Course("short", profile("instant"), 3)
    run = run_virtual(build_law("fixed"), course.server(0), course.draw(0))

    assert ElementTree.fromstring(plot("short", {"fixed": run}, best=0)) is not None
    assert run.ticks == []
