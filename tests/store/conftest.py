from __future__ import annotations

from pathlib import Path

import pytest
from store_rows import Relay, SmallRun

from evalpipe.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "run")


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(Relay(tmp_path / "run"))
