"""cluster.yaml as `ray up` would read it; no ssh here."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

STARTS = ("head_start_ray_commands", "worker_start_ray_commands")


@pytest.fixture
def config(repository: Path) -> dict[str, Any]:
    return yaml.safe_load((repository / "cluster.yaml").read_text(encoding="utf-8"))


def start_of(config: dict[str, Any], which: str) -> list[str]:
    """Return the words of the `ray start` in a list of commands, from `start` on."""
    words = shlex.split(config[which][-1])
    return words[words.index("start") :]


def environment_of(config: dict[str, Any], which: str) -> dict[str, str]:
    words = shlex.split(config[which][-1])
    return dict(word.split("=", 1) for word in words[: words.index("start")] if "=" in word)


def test_it_fits_the_schema_inside_ray(config: dict[str, Any]):
    """Filled out with Ray's defaults for the local provider it passes Ray's own validation: one head, two workers."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(config)
    validate_config(prepared)

    node_type = prepared["available_node_types"][prepared["head_node_type"]]
    assert (node_type["min_workers"], prepared["max_workers"]) == (2, 2)
    assert prepared["head_start_ray_commands"] == config["head_start_ray_commands"]


def test_a_misspelt_key_would_be_noticed(config: dict[str, Any]):
    """Otherwise the test above proves nothing."""
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config({**config, "head_start_commands": []})

    with pytest.raises(ValidationError, match="head_start_commands"):
        validate_config(prepared)


@pytest.mark.parametrize("which", STARTS)
def test_ray_knows_every_option_that_is_used(config: dict[str, Any], which: str):
    """The installed `ray start` takes the words; nothing is started."""
    from ray.scripts.scripts import start

    given = start.make_context("start", start_of(config, which)[1:]).params

    assert given["dashboard_host"] == "127.0.0.1" or which == "worker_start_ray_commands"
    assert given["disable_usage_stats"] is True


@pytest.mark.parametrize("which", STARTS)
def test_every_node_starts_with_token_and_without_niceness(config: dict[str, Any], which: str):
    """A node without the mode refuses the others; one at nice 15 measures wrong latencies."""
    assert environment_of(config, which) == {
        "RAY_AUTH_MODE": "token",
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@pytest.mark.parametrize("which", [*STARTS, "setup_commands"])
def test_the_commands_are_shell(config: dict[str, Any], which: str):
    """bash can read each of them."""
    for command in config[which]:
        read = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)

        assert read.returncode == 0, read.stderr


def test_no_secret_is_meant_to_stand_in_it(config: dict[str, Any]):
    """Ray copies the file to the head and prints its commands: keys come from a file on each node."""
    text = yaml.safe_dump(config)

    assert "API_KEY" not in text
    assert all(". ~/.evalpipe.env" in config[which][-1] for which in STARTS)
