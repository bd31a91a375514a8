"""One run to be disturbed: folder, command, a server that outlives all drivers, and what must hold at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.drivers import Driver
from chaos.history import Standing, read_entries, standing
from chaos.leftovers import age, temporary_files
from chaos.reckoning import Bill, Kill, bills
from chaos.watching import Tail, names_in, until
from witness import Witness, check_run

from evalpipe import open_run
from evalpipe.errors import ConfigError
from evalpipe.records import Key
from evalpipe.sim.ledger import Ledger, read_ledger
from evalpipe.sim.server import SimServer
from evalpipe.store.entry import Entry
from evalpipe.store.log import read_state
from evalpipe.store.verify import verify

NAME = "run"
LIMIT = 16
#: half a second an answer, some 30 a second at LIMIT: a life of a driver lasts seconds, a kill finds 16 in the server
SERVER: Mapping[str, Any] = {"median": 60.0, "sigma": 0.4, "max_output": 200}


@dataclass
class Stage:
    """A run and its server. dataset: what is evaluated. ray_address: of the head that drivers join."""

    folder: Path
    dataset: Path
    ray_address: str
    server: SimServer
    items: int = 300
    workers: int = 2
    drivers: list[Driver] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scratch.mkdir(exist_ok=True)
        self.tail = Tail(self.ledger_path)
        self._done: set[Key] = set()

    @property
    def ledger_path(self) -> Path:
        return self.folder / "ledger.jsonl"

    @property
    def scratch(self) -> Path:
        """The TMPDIR of the drivers."""
        return self.folder / "tmp"

    @property
    def run(self) -> Path:
        return self.folder / "runs" / NAME

    @property
    def said(self) -> str:
        """All that drivers have printed."""
        return (self.folder / "said").read_text()

    def command(self, *more: str, limit: int = LIMIT) -> list[str]:
        """Return the arguments of the one command; the same each time unless told."""
        return [
            *("run", "--base-url", self.server.base_url, "--model", "sim", "--dataset", str(self.dataset)),
            *("--limit", str(self.items), "--workers", str(self.workers), "-o", str(self.folder / "runs")),
            *("--name", NAME, "--display", "plain", "--concurrency", str(limit)),
            *("--set", "run.flush_s=0.5", "--set", "endpoint.trace_header=true"),
            *more,
        ]

    def start(self, *more: str, limit: int = LIMIT, ray_address: str | None = None, host: str | None = None) -> Driver:
        """Start a driver; limit is stamped on its requests, so that the ledger can tell two drivers apart.

        ray_address: of another head than the stage's. host: the name it believes its host to have.
        """
        if all(driver.is_over for driver in self.drivers):  # sweeping waits an hour, lest it takes a living writer's
            age(temporary_files(self.run), by_s=2 * 3600.0)
        environment = {**os.environ, "RAY_ADDRESS": ray_address or self.ray_address, "TMPDIR": str(self.scratch)}
        arguments = self.command(*more, limit=limit)
        driver = Driver(arguments, said=self.folder / "said", environment=environment, host=host)
        self.drivers.append(driver)
        return driver

    # --- watching ---

    def done(self) -> set[Key]:
        """Return the keys that the log has a result for; none before there is a run."""
        try:
            state = read_state(open_run(self.run).store)
        except ConfigError:
            return set()
        return {Key(item, 0) for item in range(self.items) if state.is_done(Key(item, 0))}

    def until_sent(self, count: int = 1, *, driver: Driver | None = None) -> None:
        """Wait for `count` more requests; less when the driver ends."""
        self._until_more(lambda: self.tail.arrivals, count, driver, what=f"{count} requests")

    def until_answered(self, count: int, *, driver: Driver | None = None) -> None:
        """Wait for `count` more answers; less when the driver ends."""
        self._until_more(lambda: self.tail.answers, count, driver, what=f"{count} answers")

    def until_distinct(self, count: int, *, driver: Driver) -> None:
        """Wait until `count` items have been answered, or the driver ends."""
        until(lambda: len(self.tail.look().answered) >= count or driver.is_over, what="the last items")

    def until_parts(self, *, driver: Driver, are_whole: bool = False) -> None:
        """Wait for the first byte in parts/, or for a whole part, or for the driver's end."""

        def are_there() -> bool:
            return any(not (are_whole and name.startswith(".")) for name in names_in(self.run / "parts"))

        until(lambda: are_there() or driver.is_over, what="parts")

    def _until_more(self, read: Any, count: int, driver: Driver | None, *, what: str) -> None:
        self.tail.look()
        target = read() + count

        def is_there() -> bool:
            self.tail.look()
            return read() >= target or (driver is not None and driver.is_over)

        until(is_there, what=what)

    # --- judging ---

    def ledger(self) -> Ledger:
        return read_ledger(self.ledger_path, run=NAME)

    def kill(self, driver: Driver, moment: str) -> None:
        """kill -9 of the driver. Asserts that what was done before is still done (I2)."""
        assert not driver.is_over, f"it was over before it could be killed ({moment}):\n{self.said}"
        self.note("driver", moment, dying_s=1.0)
        driver.kill()
        before, self._done = self._done, self.done()
        assert before <= self._done, f"done and forgotten: {sorted(before - self._done)}"

    def note(self, victim: str, moment: str, *, dying_s: float = 0.0) -> None:
        """Remember a kill that happens now."""
        self.kills.append(Kill(time.monotonic(), victim, moment, dying_s))

    def bills(self) -> list[Bill]:
        return bills(self.ledger(), self.kills)

    def standings(self) -> list[Standing]:
        entries = self.entries()
        return [standing(entries, kill.at) for kill in self.kills]

    def entries(self) -> list[Entry]:
        """Return the log as it is now, oldest entry first; empty before there is a run."""
        try:
            return read_entries(open_run(self.run).store)
        except ConfigError:
            return []

    def check(self, *, failed: int = 0, has_zombies: bool = False) -> Witness:
        """Assert that every item is there exactly once as the server answered it, and that log and files agree.

        has_zombies: workers of a fenced driver may have written files that nobody needs.
        """
        found = check_run(self.run, self.ledger_path)
        report = verify(open_run(self.run).store)
        assert (found.rows, found.answered) == (self.items, self.items - failed), (found, report)
        assert not (found.doubled or found.foreign or found.misjudged), found
        assert report.is_complete, report
        assert has_zombies or not report.orphans, report.orphans
        return found


def total_bound(found: Sequence[Bill]) -> tuple[int, int]:
    """Return what was paid twice in all, and what may have been."""
    return sum(bill.paid_twice for bill in found), sum(bill.bound for bill in found)
