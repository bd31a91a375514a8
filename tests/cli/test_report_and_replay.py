"""`evalpipe report` and `evalpipe sim replay` on stored runs, without Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report.stored import answer, store_run, tick

from evalpipe.cli.main import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store_run(tmp_path / "run", results=[answer(i) for i in range(60)], ticks=[tick(i / 2) for i in range(1, 60)])
    return tmp_path / "run"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ending:
            main(arguments)
        assert not ending.value.code
        return capsys.readouterr().out

    return call


def test_report_writes_a_page_of_a_run_whose_driver_was_killed(run: Path, said: Callable[..., str]):
    """Without summary.json too: the results say it; stdout is the address of the page."""
    told = said("report", str(run))

    assert told == f"{run}/report.html\n"
    assert "60 scored" in (run / "report.html").read_text()


def test_report_says_its_address_as_json(run: Path, said: Callable[..., str]):
    """For scripts."""
    assert json.loads(said("report", str(run), "--json")) == {"report": f"{run}/report.html"}


def test_report_believes_the_results_more_than_a_damaged_summary(run: Path, said: Callable[..., str]):
    """A page can be made of whatever is sound."""
    (run / "summary.json").write_text("{")

    said("report", str(run))

    assert "60 scored" in (run / "report.html").read_text()


def test_replay_prints_a_table(run: Path, said: Callable[..., str]):
    """What happened, the run's law and the one asked for."""
    lines = said("sim", "replay", str(run), "--law", "aimd").splitlines()

    assert [line.split("  ")[0] for line in lines[3:6]] == ["what happened", "regress, as it ran", "aimd"]


def test_replay_prints_json(run: Path, said: Callable[..., str]):
    """The same rows as numbers."""
    told = json.loads(said("sim", "replay", str(run), "--law", "aimd", "--profile", "vllm", "--json"))

    assert [row["label"] for row in told["rows"]] == ["what happened", "regress, as it ran", "aimd"]
