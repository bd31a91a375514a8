"""Names from users and data sets choose no path outside a run's own folder, and a planted link leads nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalpipe.config import NAME_PATTERN, parse_config
from evalpipe.errors import ConfigError, StateError
from evalpipe.runtime.place import made_up_name
from evalpipe.store.local import LocalStore
from evalpipe.store.objects import probe

BAD_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc/x",
    ".hidden",
    "-rf",
    "a b",
    "a\n",
    "a\0",
    "ä",
    "~",
    "$HOME",
    "a" * 129,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_run_name_is_one_plain_word(name: str):
    """Refused with the pattern that would do, before any folder is looked at."""
    with pytest.raises(ConfigError, match="must match"):
        parse_config({"run": {"name": name}})


@pytest.mark.parametrize("model", ["../../etc/passwd", "a\n b", ".", "x" * 300, "-rf", "\u202eevil", "org/model:8b"])
def test_a_made_up_name_is_one_plain_word_too(model: str):
    """Model and data set may be called anything."""
    config = parse_config({"endpoint": {"model": model}, "dataset": {"path": "../../.x.jsonl"}})

    assert NAME_PATTERN.fullmatch(made_up_name(config))


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", "./a", "", "a/", ".tmp-x"])
def test_no_key_leads_out_of_the_store(tmp_path: Path, key: str):
    """Refused as a bug of ours: nothing is written."""
    store = LocalStore(tmp_path / "run")

    with pytest.raises(StateError):
        store.put_if_absent(key, b"x")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("planted", [".", "_log", "parts"])
def test_a_planted_link_is_not_written_through(tmp_path: Path, planted: str):
    """Who can write beside our runs could else have our answers written into a folder of his."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "runs/run"
    run.parent.mkdir()
    if planted != ".":
        run.mkdir(mode=0o700)
    (run / planted if planted != "." else run).symlink_to(elsewhere)
    store = LocalStore(run)

    with pytest.raises((OSError, ConfigError)):
        store.put_if_absent("_log/0000000001.json" if planted == "." else f"{planted}/x.json", b"secret")
    assert list(elsewhere.rglob("*")) == []


def test_a_linked_run_folder_is_refused_before_anything_is_sent(tmp_path: Path):
    """The look at the start already fails, in one line with the place."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")

    with pytest.raises((OSError, ConfigError), match="run"):
        probe(LocalStore(tmp_path / "run"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
