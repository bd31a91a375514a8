"""A stage for every chaos test, checked for leftovers when it is cleared; the tables at the end of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from chaos import drivers, leftovers
from chaos.stage import SERVER, Stage
from chaos.tables import Tables
from chaos.watching import until

from evalpipe.sim.server import SimServer

GONE_WITHIN_S = 20.0  # Ray takes its time to reap workers on a busy machine

MakeStage = Callable[..., Stage]

_tables = Tables()


def pytest_configure(config: pytest.Config) -> None:
    leftovers.mark_session()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in _tables.lines():
        terminalreporter.write_line(line)


@pytest.fixture
def tables() -> Tables:
    return _tables


@pytest.fixture
def make_stage(ray_head: str, tmp_path: Path, repository: Path) -> Iterator[MakeStage]:
    """Return a function that sets up one run beside the shared Ray; keywords: of Stage, and `server`'s options.

    At the end all drivers must be over, and no process, listening socket or temporary file of theirs be left (I8).
    """
    drivers.warm_up()
    before = leftovers.presence()
    stages: list[Stage] = []
    dataset = repository / "datasets/logic-5k.parquet"
    with ExitStack() as stack:

        def make(*, server: dict[str, Any] | None = None, ray_address: str = ray_head, **more: Any) -> Stage:
            folder = tmp_path / f"stage{len(stages)}"
            folder.mkdir()
            started = SimServer(
                "vllm", options={**SERVER, **(server or {})}, dataset=dataset, ledger=folder / "ledger.jsonl"
            )
            stack.callback(started.stop)
            stage = Stage(folder, dataset, ray_address, started, **more)
            stages.append(stage)
            stack.callback(_end_drivers, stage)
            return stage

        yield make
    _check_gone(before, stages)


def _end_drivers(stage: Stage) -> None:
    for driver in stage.drivers:
        driver.kill()


def _check_gone(before: leftovers.Presence, stages: list[Stage]) -> None:
    def left() -> leftovers.Presence:
        return leftovers.presence().since(before)

    try:
        until(lambda: not left(), within_s=GONE_WITHIN_S, what="the run's processes to go")
    except TimeoutError:
        pytest.fail(f"left behind: {left()}")
    files = [path for stage in stages for path in (*leftovers.temporary_files(stage.run), *stage.scratch.iterdir())]
    assert not files, "temporary files left behind"
