"""The three hosts, once for all tests here, and the table of what they did."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.hosts import Hosts, Settings
from cluster.network import Network, why_not
from cluster.outcome import TABLE_KEY, Outcome, table


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE_KEY] = []


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Three nodes, a server. Fails, and says why, where namespaces cannot be made: a skip would look like success."""
    reason = why_not()
    if reason:
        pytest.fail(f"the cluster tests cannot run here: {reason}", pytrace=False)
    # a short path: Ray's sockets lie below it, and their names end at 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="evc-"))
    made = Hosts(Network(f"ev{os.getpid()}"), folder, Path(__file__).parents[2], Settings())
    try:
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> list[Outcome]:
    return request.config.stash[TABLE_KEY]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = terminalreporter.config.stash.get(TABLE_KEY, [])
    if found:
        terminalreporter.section("three nodes")
        terminalreporter.write_line(table(found))
