"""Runs for real: real Ray, real HTTP through the openai client, the simulated server, real Parquet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evalpipe import Run
from evalpipe.api import run as run_config
from evalpipe.cli.main import main
from evalpipe.config import load_config

#: a quick server: short answers, everything else as profile vllm
QUICK = {"median": 24.0, "sigma": 0.5, "max_output": 200}

RunIt = Callable[..., Run]


@pytest.fixture
def run_it(ray_head: str, tmp_path: Path, repository: Path) -> RunIt:
    """Return a function that runs logic-5k against the simulated server; arguments are dotted settings."""

    def run(limit: int = 100, show: Callable[[Any], None] = lambda progress: None, **settings: Any) -> Run:
        flags: dict[str, Any] = {
            "dataset.path": str(repository / "datasets/logic-5k.parquet"),
            "dataset.limit": limit,
            "endpoint.base_url": "sim://vllm",
            "sim.options": QUICK,
            "run.output": str(tmp_path / "runs"),
            "run.name": "run",
            "run.workers": 1,
            "run.flush_s": 0.5,
        }
        flags |= {name.replace("__", "."): value for name, value in settings.items()}
        return run_config(load_config(flags=flags, environ={}), show=show)

    return run


@dataclass(frozen=True)
class Said:
    """What a command line said: exit code, stdout, stderr and how long it took."""

    code: int
    out: str
    err: str
    seconds: float


@pytest.fixture
def cli(ray_head: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Return a function that runs the command line in this process, beside the shared Ray."""

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["evalpipe", *arguments])
        capsys.readouterr()
        began = time.monotonic()
        with pytest.raises(SystemExit) as stopped:
            main()
        seconds, said = time.monotonic() - began, capsys.readouterr()
        code = stopped.value.code
        return Said(code if isinstance(code, int) else 0, said.out, said.err, seconds)

    return call
