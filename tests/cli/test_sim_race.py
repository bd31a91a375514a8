"""`evalpipe sim race` from the command line, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from evalpipe.cli.sim import app
from evalpipe.errors import ConfigError

QUICK = ["race", "--suite", "quick", "--only", "8 slots", "--law", "gradient", "--processes", "1"]


def race(*arguments: str):
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_case_and_a_law_are_raced():
    """The table has its line, and the search or the table's limit is told on the other stream."""
    result = race(*QUICK)

    assert result.exit_code == 0
    assert any(line.startswith("  8 slots") and "gradient" in line for line in result.stdout.splitlines())
    assert "1/1 8 slots #0" in result.stderr


def test_files_are_written(tmp_path: Path):
    """Rows as Parquet, and the picture."""
    rows, picture = tmp_path / "rows.parquet", tmp_path / "race.svg"

    race(*QUICK, "--out", str(rows), "--plot", str(picture), "--seeds", "2")

    assert pq.read_table(rows)["seed"].to_pylist() == [0, 1]
    assert picture.read_text().startswith("<svg")


def test_json_is_all_that_is_printed():
    """Nothing else on stdout, so that a program can read it."""
    data = json.loads(race(*QUICK, "--json").stdout)

    assert [row["case"] for row in data["rows"]] == ["8 slots"]


@pytest.mark.parametrize("flag", ["--out", "--plot"])
def test_a_file_that_cannot_be_written_is_told(flag: str, tmp_path: Path):
    """In one line that names it."""
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere"):
        race(*QUICK, flag, str(tmp_path / "nowhere" / "file"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--suite", "quick", "--plot", "x.svg"), "--plot draws one case"),
        (("--suite", "published", "--only", "x"), "are for quick and full"),
        (("--suite", "ful"), "did you mean 'full'"),
        (("--suite", "quick", "--law", "gradeint"), "did you mean 'gradient'"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], message: str):
    """Before anything is run."""
    with pytest.raises(ConfigError, match=message):
        race("race", *arguments)
