"""verify and status on stored runs, without Ray: what they say and with which code they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from store.store_rows import SmallRun, Unsynced, flip_byte

from evalpipe.cli.main import main
from evalpipe.config import Config
from evalpipe.store import readable
from evalpipe.store.compact import compact
from evalpipe.store.entry import entry_key
from evalpipe.store.liveness import Heartbeat
from evalpipe.store.local import LocalStore


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*arguments: str) -> Said:
        code: object = 0
        try:
            main(arguments)
        except SystemExit as ending:
            code = ending.code
        said = capsys.readouterr()
        return Said(int(code or 0), said.out, said.err)

    return call


def build(root: Path, *, answered: int = 20, failed: int = 0, fail_on_error: float = 0.0) -> SmallRun:
    """A run of 20 items, merged, with its settings beside it."""
    run = SmallRun(LocalStore(root, os_calls=Unsynced()))
    run.log.commit([run.write(range(answered), failed=range(failed))])
    compact(run.store, run.log)
    config = Config().model_dump(mode="json")
    config["run"]["fail_on_error"] = fail_on_error
    run.store.put("config.yaml", readable.to_yaml(json.dumps(config)))
    return run


@pytest.mark.parametrize(
    ("run", "code", "line"),
    [
        ({}, 0, "sound and complete"),
        ({"answered": 18}, 75, "sound, not complete; go on with: evalpipe resume "),
        ({"failed": 2}, 3, "expected 20: 18 answered, 2 failed, 0 missing"),
        ({"failed": 2, "fail_on_error": 0.1}, 0, "sound and complete"),
    ],
)
def test_verify_says_how_a_sound_run_stands(
    tmp_path: Path, cli: Callable[..., Said], run: dict[str, float], code: int, line: str
):
    """Complete, incomplete, or with more failed items than the run allowed."""
    build(tmp_path / "run", **run)

    said = cli("verify", str(tmp_path / "run"))

    assert (said.code, said.err) == (code, "")
    assert line in said.out


def test_verify_names_damage(tmp_path: Path, cli: Callable[..., Said]):
    """On stderr, one line a problem; the last line of stdout is the verdict."""
    run = build(tmp_path / "run")
    (part,) = run.store.list("parts/")
    flip_byte(run.store, part, at=100)

    said = cli("verify", str(tmp_path / "run"))

    assert said.code == 78
    assert said.err.startswith(f"problem: file: {part} is damaged: sha256")
    assert said.out.endswith("NOT SOUND: 1 problem(s), named on stderr; the counts are of what could be read\n")


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_verify_reads_a_run_whose_spec_is_unusable(tmp_path: Path, cli: Callable[..., Said], damage: str):
    """That is damage like any other, not a wrong folder."""
    run = build(tmp_path / "run")
    if damage == "lost":
        run.store.delete("spec.json")
    else:
        flip_byte(run.store, "spec.json", at=30)

    said = cli("verify", str(tmp_path / "run"))

    assert said.code == 78
    assert "problem: spec: " in said.err


def test_verify_of_no_run_is_a_usage_error(tmp_path: Path, cli: Callable[..., Said]):
    """Nothing is there."""
    said = cli("verify", str(tmp_path / "none"))

    assert said.code == 2
    assert "no run at" in said.err


def test_verify_as_json_has_every_count(tmp_path: Path, cli: Callable[..., Said]):
    """For scripts: the report as it is, and its two verdicts."""
    run = build(tmp_path / "run", answered=19)
    orphan = run.write([19])

    body = json.loads(cli("verify", str(tmp_path / "run"), "--json").out)

    assert (body["expected"], body["ok"], body["missing"], body["orphans"]) == (20, 19, 1, [orphan.path])
    assert (body["is_sound"], body["is_complete"], body["problems"]) == (True, False, [])


def test_status_refuses_a_log_that_lost_its_end(tmp_path: Path, cli: Callable[..., Said]):
    """The heartbeat had seen more: no smaller number is told as if it were all, and the way out is."""
    run = build(tmp_path / "run", answered=18)
    run.log.commit([run.write([18, 19])])
    Heartbeat(run.store, 1, version=lambda: run.log.state.version).end()
    run.store.delete(entry_key(run.log.state.version))

    said = cli("status", str(tmp_path / "run"))

    assert said.code == 78
    assert "ends at entry 3 of epoch 1, but the driver of epoch 1 had seen entry 4" in said.err
    assert "delete _lease/1.json" in said.err
