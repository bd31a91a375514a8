"""A whole run with a marked key, real Ray, real HTTP: the key is nowhere, and what was written is the owner's alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from security.canary import files_below, files_with
from support import KEY, KEY_ENV

from evalpipe import Run
from evalpipe.api import run as run_config
from evalpipe.config import load_config
from evalpipe.sim.ledger import read_ledger
from evalpipe.sim.server import SimServer

pytestmark = pytest.mark.ray

ITEMS = 60
FAULTS = {"too_long": 0.1, "server_error": 0.1, "rate_limited": 0.04}


@dataclass(frozen=True)
class Made:
    run: Run
    folder: Path
    ledger: Path
    session: Path  # Ray's own folder: logs of every process of the run
    said: str


@pytest.fixture(scope="module")
def made(ray_head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A run against a server that wants the key and fails three ways; everybody's umask lets all be read."""
    from ray._private.worker import global_worker

    top = tmp_path_factory.mktemp("canary")
    lines: list[str] = []
    before = os.umask(0)
    try:
        with SimServer("instant", api_key=KEY, faults=FAULTS, seed=5, ledger=top / "ledger.jsonl") as server:
            settings = {
                "dataset.path": str(Path(__file__).parents[2] / "datasets/logic-5k.parquet"),
                "dataset.limit": ITEMS,
                "endpoint.base_url": server.base_url,
                "endpoint.model": "sim",
                "endpoint.api_key_env": KEY_ENV,
                "run.output": str(top / "runs"),
                "run.name": "canary",
                "run.workers": 1,
                "run.flush_s": 0.5,
            }
            done = run_config(load_config(flags=settings, environ={}), say=lines.append)
    finally:
        os.umask(before)
    session = Path(global_worker.node.get_session_dir_path())
    yield Made(done, top / "runs/canary", top / "ledger.jsonl", session, "\n".join(lines))


def test_the_run_met_what_it_should(made: Made):
    """Answers, refused items and retries: without them the others of this file prove nothing."""
    arrivals = read_ledger(made.ledger).arrivals

    assert made.run.exit_code == 3
    assert {arrival.fault for arrival in arrivals} >= {*FAULTS}
    assert {row["status"] for row in made.run.table().to_pylist()} >= {"ok", "failed"}


def test_no_file_of_the_run_holds_the_key(made: Made):
    """Config, log, segments, parts, attempts, flight recorder, summary: as bytes and as a Parquet reader sees them."""
    kinds = {path.suffix for path in files_below(made.folder)}

    assert {".parquet", ".json", ".yaml"} <= kinds
    assert files_with(made.folder, KEY) == []
    assert KEY not in made.said


def test_no_log_of_ray_holds_the_key(made: Made):
    """Its session folder has the logs and the command line of every process that it started."""
    logs = [path for path in files_below(made.session) if path.stat().st_size > 0]

    assert len(logs) > 5, "this is not the folder of a session that did something"
    assert files_with(made.session, KEY) == []


def test_the_key_is_found_where_it_was_put(made: Made, tmp_path: Path):
    """The search itself works: in text, in a Parquet column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.log").write_text(f"Authorization: Bearer {KEY}")
    pq.write_table(pa.table({"x": [KEY] * 100}), tmp_path / "b.parquet", compression="zstd")

    assert files_with(tmp_path, KEY) == [str(tmp_path / "a.log"), str(tmp_path / "b.parquet")]


def test_a_run_belongs_to_its_owner(made: Made):
    """Files 0600 in folders 0700, whatever the umask: prompts and answers are nobody else's business."""
    modes = {
        str(path.relative_to(made.folder)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in [made.folder, *made.folder.rglob("*")]
        if stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)
    }

    assert modes == {}
