"""The witness: holds a simulated run against DESIGN section 10, from outside, with the server's ledger in hand.

It looks at each death and power cut (has anything been lost that was settled?) and once more at the end. It finds
nothing out by asking the code that is judged, but for `verify`, which is judged with it.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import orjson
from simulation.disk import FOLDER
from simulation.drivers import EXCHANGE_S, FLUSH_S, TTL_S, Ended
from simulation.scheduler import Process
from simulation.server import Visit
from simulation.sim_os import DiskFaults, SimOs
from simulation.world import HORIZON_S, World

from evalpipe.errors import EvalPipeError
from evalpipe.sim.ledger import LedgerKey
from evalpipe.store.keys import OWED
from evalpipe.store.local import LocalStore
from evalpipe.store.log import read_state
from evalpipe.store.rows import read_all
from evalpipe.store.state import LogState
from evalpipe.store.verify import verify

WRITE_S = 0.8  # a flush that is due waits for the one before it, for the disk and for those who go first
CONVICTS = 3  # deaths of workers before an item may be called their cause
SETTLE_S = 0.2  # until the workers of a dead driver are gone
#: after these a worker may not have heard of a smaller limit until its TTL
ROUGH = frozenset({"pause", "cut off", "disk full", "power cut"})
STOP_S = 5.0  # within so long a driver that was taken over stops (issue 3)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two drivers at once: `loser` lived on after another one had claimed the run, from then until its end."""

    loser: Process
    since: float
    until: float


class Checker:
    """Watches one world; `violations` is one sentence each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[str] = []
        self._done: set[int] = set()
        self._overlaps: list[Overlap] = []
        world.hooks.before_loss = self._remember
        world.hooks.after_loss = self._compare
        self._store = LocalStore(FOLDER, os_calls=_outside(world))

    def conclude(self, *, is_ended: bool) -> list[str]:
        """Judge the end of the run; returns all violations."""
        self._compare()
        if not is_ended:
            self._say("end", f"not complete after {HORIZON_S:g} s and {len(self._world.drivers)} drivers")
        for check in (self._check_log, self._check_rows, self._check_verify, self._check_drivers):
            self._guarded(check)
        self._note_orphans()
        if is_ended:
            self._check_limit()
            self._check_losses()
            self._check_permits()
            self._check_stops()
        return self.violations

    # --- I2: nothing that was settled is ever lost ---

    def _remember(self) -> None:
        """What a driver that owned the run believes to be in the log must be there after the loss.

        What a reader saw between a link and its fsync was not promised to anybody.
        """
        for driver in self._world.drivers:
            if driver.log.epoch:
                self._done |= _done(driver.log.state, self._world.weather.items)

    def _compare(self) -> None:
        def compare() -> None:
            now = _done(read_state(self._store), self._world.weather.items)
            if lost := self._done - now:
                self._say("I2", f"{len(lost)} items were done and are not: {sorted(lost)[:5]}")

        self._guarded(compare)

    # --- I1, I6: rows ---

    def _check_rows(self) -> None:
        said = self._world.server.said()
        rows = read_all(self._store, read_state(self._store)).to_pylist()
        keys = [LedgerKey(row["item_id"], row["repeat"], row["generation"]) for row in rows]
        expected = {LedgerKey(f"i{index}", 0, 0) for index in range(self._world.weather.items)}
        if len(set(keys)) < len(keys):
            self._say("I1", f"{len(keys) - len(set(keys))} items have two results")
        if missing := expected - set(keys):
            self._say("I1", f"{len(missing)} items have no result: {sorted(missing)[:5]}")
        for key, row in zip(keys, rows, strict=True):
            if row["status"] == "failed":
                self._check_failed(key, row["error_kind"])
            elif row["response"] not in [visit.text for visit in said.get(key, [])]:
                self._say("I1", f"{key.item} holds {row['response']!r}, which the server never said")

    def _check_failed(self, key: LedgerKey, kind: str) -> None:
        """An item may fail when the server fails it, or when it was there at three deaths of workers."""
        deaths = sum(worker.process.died_at is not None for worker in self._world.workers)
        is_excused = deaths >= CONVICTS if kind == "poison" else kind in self._world.weather.server.failures
        if not is_excused:
            self._say("I1", f"{key.item} is stored as failed ({kind}), and the server never failed it")

    def _check_verify(self) -> None:
        report = verify(self._store)
        for problem in report.problems:
            self._say("I6", f"verify: {problem}")
        if report.missing:
            self._say("I6", f"verify: {report.missing} missing")

    # --- I5: the log ---

    def _check_log(self) -> None:
        """Read with nothing but JSON: versions without a gap, epochs that rise by one, one writer each."""
        entries = [orjson.loads(self._store.get(key)) for key in self._store.list("_log/")]
        epoch, writer = 0, ""
        for number, entry in enumerate(entries, start=1):
            if entry["v"] != number:
                self._say("I5", f"entry {number} says it is {entry['v']}")
            if entry["claim"] is not None and entry["epoch"] == epoch + 1:
                if writer:
                    self._note_overlap(self._driver(writer), claimed_at=entry["mono"])
                epoch, writer = entry["epoch"], entry["writer"]
            elif (entry["epoch"], entry["writer"]) != (epoch, writer):
                self._say("I5", f"entry {number} is by {entry['writer'][:8]} in epoch {entry['epoch']}")

    def _driver(self, writer: str) -> Process:
        return self._world.drivers[int(writer[:8], 16)].process

    def _note_overlap(self, loser: Process, *, claimed_at: float) -> None:
        died_at = self._world.scheduler.now if loser.died_at is None else loser.died_at
        if died_at >= claimed_at:
            self._overlaps.append(Overlap(loser, claimed_at, died_at))

    def _note_orphans(self) -> None:
        """A driver started on the host of a dead one trusts that its workers died too; one that is cut off did not."""
        if self._world.weather.moves:
            return
        for worker in self._world.workers:
            driver, died_at = self._world.driver_of[worker.process], worker.process.died_at
            until = self._world.scheduler.now if died_at is None else died_at
            if driver.died_at is not None and until > driver.died_at + SETTLE_S:
                self._overlaps.append(Overlap(driver, driver.died_at, until))

    # --- I4: the limit ---

    def _check_limit(self) -> None:
        """Judge each request when it was sent; two drivers at once (a takeover, a zombie) have a limit each."""
        rest_s = TTL_S if self._world.weather.lingers else SETTLE_S
        late = self._world.server.ledger().limit_violations(window_s=self._window_s())
        late = [a for a in late if not any(o.since <= a.t <= o.until + rest_s for o in self._overlaps)]
        if late:
            first = late[0]
            self._say("I4", f"{len(late)} above the limit, first at {first.t:.3f}: {first.in_flight}/{first.limit}")

    def _window_s(self) -> float:
        """How long after a cut the old limit may still be in use: an exchange, or the TTL where one was cut off."""
        weather = self._world.weather
        is_rough = any(trouble.kind in ROUGH for trouble in self._world.troubles) or any(
            stroke.kind == "kill_controller" for stroke in weather.strokes
        )
        return TTL_S + 1.0 if is_rough or weather.network.lost else 2 * EXCHANGE_S + 2 * weather.network.slow_s

    # --- I3: what was paid and lost ---

    def _check_losses(self) -> None:
        """A second payment needs an excuse: something befell the first worker before its answer was in a file."""
        if self._world.weather.disk.stale_list:
            return  # a file that a stale listing does not show is adopted by a later driver, or not
        by_key: dict[LedgerKey, list[Visit]] = defaultdict(list)
        for visit in self._world.server.visits:
            by_key[visit.key].append(visit)
        for key, visits in by_key.items():
            for first, second in itertools.pairwise(visits):
                if first.text is not None and not self._is_excused(first, second):
                    self._say(
                        "I3",
                        f"{key.item} was answered at {first.ended_at:.3f} to {first.worker.name} and sent again at"
                        f" {second.sent_at:.3f} by {second.worker.name}",
                    )

    def _is_excused(self, first: Visit, second: Visit) -> bool:
        """Something befell the first sender before its file was there, or two drivers were at work."""
        assert first.ended_at is not None
        until = first.ended_at + FLUSH_S + WRITE_S
        concerned = (first.worker, self._world.driver_of[first.worker], None)
        is_troubled = any(
            trouble.since <= until and trouble.until >= first.sent_at
            for trouble in self._world.troubles
            if trouble.process in concerned
        )
        losers = {self._world.driver_of[first.worker], self._world.driver_of[second.worker]}
        return is_troubled or any(
            overlap.loser in losers and overlap.since <= max(until, second.sent_at) for overlap in self._overlaps
        )

    # --- the rest ---

    def _check_permits(self) -> None:
        """Nothing leaks: drained workers have nothing out, and a TTL later a controller has its whole limit to lend."""
        for line in [*self._world.leaks, *(leak for worker in self._world.workers for leak in worker.leaks)]:
            self._say("I8", line)

    def _check_stops(self) -> None:
        """A driver whose run was claimed by another one stops sending within five seconds, if it can run at all."""
        for overlap in self._overlaps:
            pauses = [t for t in self._world.troubles if t.process is overlap.loser and t.kind == "pause"]
            is_driver = overlap.loser.died_at != overlap.since
            if is_driver and not pauses and overlap.until > overlap.since + STOP_S:
                since, until = f"{overlap.since:.3f}", f"{overlap.until:.3f}"
                self._say("stop", f"{overlap.loser.name} lost the run at {since} and went on until {until}")

    def _check_drivers(self) -> None:
        """Exit codes; and who never owned the run, or found it complete, has sent nothing."""
        senders = {self._world.driver_of[visit.worker] for visit in self._world.server.visits}
        for driver in self._world.drivers:
            if driver.process in senders and (not driver.log.epoch or driver is self._world.once_more):
                self._say("exit", f"{driver.process.name} had nothing to send and sent")
            if driver is self._world.once_more and driver.ended != Ended(0):
                self._say("exit", f"{driver.process.name} found the run complete and ended with {driver.ended}")
            # 2: the disk cannot be written when the command is given, and the command says so
            if driver.ended is not None and driver.ended.exit_code not in (None, 0, 2, 75):
                self._say("exit", f"{driver.process.name} ended with {driver.ended.exit_code}: {driver.ended.why}")

    def _guarded(self, check: Callable[[], None]) -> None:
        try:
            check()
        except (EvalPipeError, OSError, ValueError, KeyError) as error:
            self._say("I6", f"cannot be read: {error}")

    def _say(self, invariant: str, what: str) -> None:
        line = f"{invariant}: {what}"
        self._world.scheduler.note("!!", line)
        if line not in self.violations:
            self.violations.append(line)


def _done(state: LogState, items: int) -> set[int]:
    codes = state.codes(repeat=0, generation=0, items=items)
    return {index for index, code in enumerate(codes) if code != OWED}


def _outside(world: World) -> SimOs:
    """Look at the disk without being part of what happens."""
    return SimOs(
        world.disk, enter=lambda call, path: None, count=lambda what: None, faults=DiskFaults(), rng=random.Random(0)
    )
