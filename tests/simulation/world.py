"""One simulated run from its first driver to its complete results: the wiring, and the blows of the weather.

Somebody runs the command again whenever no driver is left, as a person or a supervisor would, until it says complete.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

from simulation.actors import SimController, SimWorker
from simulation.blows import Blows
from simulation.disk import FOLDER, Disk
from simulation.drivers import TTL_S, SimDriver
from simulation.hosts import Hosts
from simulation.mutations import Mutation
from simulation.network import Network
from simulation.ray_double import Handle, RayDouble
from simulation.scheduler import Process, Scheduler, Strand
from simulation.server import ModelServer
from simulation.sim_os import DiskFaults, SimOs
from simulation.stage import draw_uuid, staged
from simulation.weather import Stroke, Weather

from evalpipe.config import ControlConfig
from evalpipe.control.quota import Quota
from evalpipe.runtime.clock import Clock
from evalpipe.runtime.controller import Predecessor
from evalpipe.runtime.messages import WorkerSpec
from evalpipe.store.local import LocalStore

WALL = 1_800_000_000.0  # seconds since the Unix epoch when a simulation begins
HORIZON_S = 900.0  # no run needs so long, whatever happens to it
LINGER_S = 64.0  # a cut-off node is declared dead after so long (FACTS)
MAX_DRIVERS = 25
RETRY_S = 8.0  # after a write that failed rows wait so long at most for the next one (runtime.outbox)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What excuses a lost answer. process: None for everybody. kind: death, pause, cut off, power cut, .."""

    process: Process | None
    kind: str
    since: float
    until: float


@dataclass(slots=True)
class Hooks:
    """Called by the world at the moments when a witness should look. before_loss: a power cut is about to happen."""

    before_loss: Callable[[], None] = field(default=lambda: None)
    after_loss: Callable[[], None] = field(default=lambda: None)


class World:
    """Everything there is in one simulation."""

    def __init__(
        self,
        weather: Weather,
        *,
        seed: int,
        mutation: Mutation | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.weather, self._seed = weather, seed
        self._mutation = mutation or Mutation()
        self.scheduler = Scheduler(trace=trace)
        self._rngs = {name: random.Random(f"{name}/{seed}") for name in ("disk", "net", "server", "world", "uuid")}
        self.counts: Counter[str] = Counter()
        self.disk = Disk(self._rngs["disk"], now=lambda: self.scheduler.now, honesty=self._mutation.honesty)
        self.network = Network(self.scheduler, self._rngs["net"], weather.network, count=self.count)
        self.server = ModelServer(self.scheduler, self._rngs["server"], weather.server, ttl_s=TTL_S)
        self.ray = RayDouble(self.scheduler, self.network)
        self.drivers: list[SimDriver] = []
        self.workers: list[SimWorker] = []
        self.controllers: list[SimController] = []
        self.driver_of: dict[Process, Process] = {}
        self.troubles: list[Trouble] = []
        self.hooks = Hooks()
        self.leaks: list[str] = []
        self.calls = self.calls_of_run = 0  # os calls so far; of these, until the run was complete
        self.is_complete = False
        self.is_calm = False  # from then on nothing goes wrong any more
        self.once_more: SimDriver | None = None  # the driver that finds everything done
        self._blows = Blows(self)
        self._hosts = Hosts(self.scheduler, moves=weather.moves)
        self._by_call = {stroke.at_call: stroke for stroke in weather.strokes if stroke.at_call is not None}

    # --- running ---

    def run(self) -> bool:
        """Let it happen, and type the command once more when all is calm; False when it did not end in time."""
        with self._staged():
            self.start_driver()
            for stroke in self.weather.strokes:
                if stroke.at_s is not None:
                    self.scheduler.after(stroke.at_s, partial(self._strike, stroke))
            if not self.scheduler.run(until=self._is_over, horizon_s=HORIZON_S):
                return False
            self.calls_of_run = self.calls
            self.disk.is_full, self.is_calm = False, True
            self.once_more = self.start_driver()
            return self.scheduler.run(until=self._is_over, horizon_s=self.scheduler.now + HORIZON_S)

    def finish(self) -> None:
        """End every process; nothing may run on behind a test."""
        with self._staged():
            for one in self.processes():
                one.kill()
            self.scheduler.reap()
            for worker in self.workers:
                worker.close()

    def _is_over(self) -> bool:
        return self.is_complete and not any(driver.process.is_alive for driver in self.drivers)

    def _staged(self) -> AbstractContextManager[None]:
        return staged(
            ray=self.ray,
            make_worker=self._start_worker,
            make_controller=self._start_controller,
            hosts=self._hosts,
            rng=self._rngs["uuid"],
            mutation=self._mutation,
        )

    # --- processes ---

    def start_driver(self, *, takeover: bool = False) -> SimDriver:
        """Type the command."""
        number = len(self.drivers)
        process = self._process(f"d{number}")
        driver = SimDriver(
            process,
            weather=self.weather,
            store=self.store_for(process),
            clock=self._clock(),
            takeover=takeover,
            writer=f"{number:08x}{draw_uuid(self._rngs['uuid']).hex[8:]}",
        )
        self.drivers.append(driver)
        process.on_death[self] = lambda: self._on_driver_death(driver)
        self.scheduler.note(process.name, "starts" + (" to take over" if takeover else ""))
        Strand(self.scheduler, process, lambda: driver.main(self._on_driver_end))
        return driver

    def _on_driver_end(self, driver: SimDriver) -> None:
        ended = driver.ended
        assert ended is not None
        self.scheduler.note(driver.process.name, f"ends with {ended.exit_code} {ended.why}")
        self.is_complete = self.is_complete or ended.exit_code == 0
        ours = [actor for actor in self.controllers if self.driver_of[actor.process] is driver.process]
        self.leaks += [leak for actor in ours if actor.process.is_alive and (leak := actor.find_leak())]
        driver.process.kill()

    def _on_driver_death(self, driver: SimDriver) -> None:
        """Ray ends the actors of a dead driver; one that is cut off lives on until its node is given up."""
        self.note_trouble(driver.process, "death")
        for actor in [*self.workers, *self.controllers]:
            if self.driver_of[actor.process] is driver.process and actor.process.is_alive:
                if isinstance(actor, SimWorker) and self._rngs["world"].random() < self.weather.lingers:
                    self.count("lingering_worker")
                    self.network.cut_off(actor.process, LINGER_S)
                self.ray.kill_process(actor.process)
        patience_s = 1.0 + len(self.drivers) / 4  # who sees it fail again waits longer
        self.scheduler.after(self._rngs["world"].uniform(0.3, 2.0) * patience_s, self._supervise)

    def _supervise(self) -> None:
        is_needed = not self.is_complete and not any(driver.process.is_alive for driver in self.drivers)
        if is_needed and len(self.drivers) < MAX_DRIVERS:
            self.start_driver()

    def _start_worker(self, spec: WorkerSpec, controller: Handle) -> Handle:
        process = self._process(f"{spec.name}.{spec.incarnation}/{spec.writer_epoch}")
        worker = SimWorker(
            self.scheduler,
            process,
            spec=spec,
            controller=controller,
            network=self.network,
            server=self.server,
            store=self.store_for(process),
            clock=self._clock(),
            rng=self._rngs["world"],
        )
        self.workers.append(worker)
        return self._adopt(worker)

    def _start_controller(self, config: ControlConfig, before: Predecessor, *, quota: Quota) -> Handle:
        process = self._process(f"c{len(self.controllers)}")
        controller = SimController(self.scheduler, process, config, before, quota)
        self.controllers.append(controller)
        return self._adopt(controller)

    def _adopt(self, actor: SimWorker | SimController) -> Handle:
        assert self.scheduler.current is not None, "actors are started by drivers"
        self.driver_of[actor.process] = self.scheduler.current.process
        actor.process.on_death[self] = lambda: self.note_trouble(actor.process, "death")
        return Handle(self.ray, actor)

    def _process(self, name: str) -> Process:
        return self._hosts.register(Process(name, self.scheduler))

    def processes(self) -> list[Process]:
        return [actor.process for actor in (*self.drivers, *self.workers, *self.controllers)]

    def _clock(self) -> Clock:
        scheduler = self.scheduler
        return Clock(now=lambda: scheduler.now, wall=lambda: WALL + scheduler.now, sleep=scheduler.sleep)

    def store_for(self, process: Process) -> LocalStore:
        return LocalStore(
            FOLDER,
            os_calls=SimOs(
                self.disk,
                enter=lambda call, path: self._enter(process, call, path),
                count=partial(self._on_disk_fault, process),
                faults=DiskFaults() if self.is_calm else self.weather.disk,
                rng=self._rngs["disk"],
            ),
        )

    def _enter(self, process: Process, call: str, path: str) -> None:
        """Before each os call: a blow may fall, others may go first, the process may be dead or stand still."""
        strand = self.scheduler.current
        if strand is None or not strand.is_here:
            raise OSError("the real heartbeat thread of a compaction: not part of the simulation")
        process.check()
        self.calls += 1
        self.scheduler.note(process.name, f"{call} {path}")
        stroke = self._by_call.pop(self.calls, None)
        if stroke is not None:
            self._strike(stroke, by=process)
        if self.weather.yields and self._rngs["world"].random() < self.weather.yields:
            self.count("yield")
            self.scheduler.sleep(self._rngs["world"].uniform(0.0, 0.05))
        while process.is_paused and process.is_alive:
            self.scheduler.sleep(0.0)
        process.check()

    def _strike(self, stroke: Stroke, *, by: Process | None = None) -> None:
        if not self._is_over() and not self.is_calm:
            self._blows.strike(stroke, by=by)

    def note_trouble(self, process: Process | None, kind: str, seconds: float = 0.0) -> None:
        self.troubles.append(Trouble(process, kind, self.scheduler.now, self.scheduler.now + seconds))

    def _on_disk_fault(self, process: Process, kind: str) -> None:
        self.count(kind)
        if kind == "failed_sync" and process in self.driver_of:  # a driver tries again, and loses nothing by it
            self.note_trouble(process, "storage", RETRY_S)

    def count(self, what: str) -> None:
        self.counts[what] += 1
