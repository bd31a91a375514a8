"""A capacity file becomes bounds of the limit; anything else is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evalpipe.cli.capacity_file import capacity_flags
from evalpipe.config import load_config
from evalpipe.errors import ConfigError


def write(path: Path, **changes: object) -> Path:
    body = {"recommended": {"max_in_flight": 28, "request_rate": 18.2}, "is_confirmed": True, **changes}
    path.write_text(json.dumps(body))
    return path


def test_the_cap_bounds_the_limit_and_starts_it_warm(tmp_path: Path):
    """28 in flight at most, 17 to begin with; the file or its folder; settings that a config takes."""
    path = write(tmp_path / "result.json")

    flags = capacity_flags(path)

    assert flags == capacity_flags(tmp_path) == {"control.max_limit": 28, "control.start": 17}
    assert load_config(flags=flags, environ={}).control.max_limit == 28


def test_what_was_not_confirmed_is_no_bound(tmp_path: Path):
    """A quick look promises nothing."""
    with pytest.raises(ConfigError, match=r"not confirmed; run .* without --quick"):
        capacity_flags(write(tmp_path / "result.json", is_confirmed=False))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"recommended": {"max_in_flight": "many"}, "is_confirmed": true}'])
def test_another_file_is_refused(tmp_path: Path, text: str):
    """Not JSON, not an object, not a capacity."""
    path = tmp_path / "other.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"takes result.json .*other.json"):
        capacity_flags(path)


def test_a_missing_file_is_named(tmp_path: Path):
    """The path that was looked at."""
    with pytest.raises(ConfigError, match=r"no such file: .*result.json"):
        capacity_flags(tmp_path)
