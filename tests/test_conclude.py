"""How a run is closed: summary and page, and an exit code that no page can change."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from store.store_rows import SmallRun, Unsynced

from evalpipe.api import conclude
from evalpipe.config import load_config
from evalpipe.report.page import KEY
from evalpipe.runtime.session import Session
from evalpipe.store.compact import compact
from evalpipe.store.local import LocalStore


class NoPages(LocalStore):
    """A folder that takes everything but a page."""

    def put(self, key: str, data: bytes) -> None:
        if key == KEY:
            raise OSError(errno.ENOSPC, "no space left")
        super().put(key, data)


def session(store: LocalStore) -> Session:
    """A run of 20 items, all answered, and its session with nothing left to do."""
    run = SmallRun(store)
    run.log.commit([run.write(range(20))])
    compact(run.store, run.log)
    nothing: Any = None
    return Session(load_config(environ={}), "run", store, None, nothing, run.spec, run.log.state, None, None, None)


def test_a_run_ends_with_a_page(tmp_path: Path):
    """Beside summary.json, and of the same numbers."""
    run = conclude(session(LocalStore(tmp_path, os_calls=Unsynced())), None)

    assert run.exit_code == 0
    assert "20 scored" in run.store.get(KEY).decode()


def test_a_page_that_cannot_be_written_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The summary is there, the exit code is that of the run, the log says what to do."""
    run = conclude(session(NoPages(tmp_path, os_calls=Unsynced())), None)

    assert run.exit_code == 0
    assert run.summary["items"]["ok"] == 20
    assert "report.html was not written; try evalpipe report" in caplog.text
