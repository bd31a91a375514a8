"""The blows of the weather: what dies, stands still, is cut off or filled up, and who started another driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.disk import FOLDER
from simulation.scheduler import Process
from simulation.weather import Stroke

if TYPE_CHECKING:
    from simulation.world import World


class Blows:
    """Lets strokes fall on one world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def strike(self, stroke: Stroke, *, by: Process | None = None) -> None:
        """Let one blow fall. by: the process whose os call it falls on, which a kill prefers."""
        is_done: bool = getattr(self, f"_{stroke.kind}")(stroke, by)
        if is_done:
            self._world.count(stroke.kind)

    def _kill_driver(self, stroke: Stroke, by: Process | None) -> bool:
        return self._kill(self._pick(self._world.drivers, stroke, by))

    def _kill_caller(self, stroke: Stroke, by: Process | None) -> bool:
        """Whoever makes the call, so that the call is never made."""
        return self._kill(by)

    def _kill_worker(self, stroke: Stroke, by: Process | None) -> bool:
        return self._kill(self._pick(self._world.workers, stroke, by))

    def _kill_controller(self, stroke: Stroke, by: Process | None) -> bool:
        return self._kill(self._pick(self._world.controllers, stroke, by))

    def _kill_node(self, stroke: Stroke, by: Process | None) -> bool:
        """All workers but the first are on the other node."""
        there = [
            worker.process for worker in self._world.workers if worker.process.is_alive and worker.spec.name != "w0"
        ]
        return sum(self._kill(worker) for worker in there) > 0

    def _power_cut(self, stroke: Stroke, by: Process | None) -> bool:
        """The machine with all processes and the disk."""
        self._world.hooks.before_loss()
        self._world.scheduler.note("sim", "power cut")
        self._world.note_trouble(None, "power cut")
        for one in self._world.processes():
            one.kill()
        self._world.disk.is_full = False
        self._world.disk.cut_power()
        self._world.hooks.after_loss()
        return True

    def _pause_driver(self, stroke: Stroke, by: Process | None) -> bool:
        return self._pause(self._pick(self._world.drivers, stroke, by), stroke.seconds)

    def _pause_worker(self, stroke: Stroke, by: Process | None) -> bool:
        return self._pause(self._pick(self._world.workers, stroke, by), stroke.seconds)

    def _pause_controller(self, stroke: Stroke, by: Process | None) -> bool:
        return self._pause(self._pick(self._world.controllers, stroke, by), stroke.seconds)

    def _cut_off_worker(self, stroke: Stroke, by: Process | None) -> bool:
        process = self._pick(self._world.workers, stroke, by)
        if process is not None:
            self._world.network.cut_off(process, stroke.seconds)
            self._world.note_trouble(process, "cut off", stroke.seconds)
        return process is not None

    def _fill_disk(self, stroke: Stroke, by: Process | None) -> bool:
        def free() -> None:
            self._world.disk.is_full = False
            self._world.scheduler.note("sim", "the disk has room again")

        self._world.scheduler.note("sim", "the disk is full")
        self._world.disk.is_full = True
        self._world.note_trouble(None, "disk full", stroke.seconds)
        self._world.scheduler.after(stroke.seconds, free)
        return True

    def _second_driver(self, stroke: Stroke, by: Process | None) -> bool:
        self._world.start_driver()
        return True

    def _takeover(self, stroke: Stroke, by: Process | None) -> bool:
        self._world.start_driver(takeover=True)
        return True

    def _stranger(self, stroke: Stroke, by: Process | None) -> bool:
        """Somebody leaves a file among the segments that no worker wrote, or wrote half."""
        name = f"1-{int(stroke.pick * 16**8):08x}-w9.1-1-{int(stroke.pick * 16**16):016x}.parquet"
        self._world.disk.plant(FOLDER / "segments" / name, b"PAR1 not really PAR1")
        return True

    def _kill(self, process: Process | None) -> bool:
        if process is not None:
            self._world.hooks.before_loss()
            process.kill()
            self._world.hooks.after_loss()
        return process is not None

    def _pause(self, process: Process | None, seconds: float) -> bool:
        if process is not None:
            process.pause(seconds)
            self._world.note_trouble(process, "pause", seconds)
        return process is not None

    def _pick(self, actors: list[Any], stroke: Stroke, by: Process | None) -> Process | None:
        alive = [actor.process for actor in actors if actor.process.is_alive]
        if by in alive:
            return by
        return alive[int(stroke.pick * len(alive))] if alive else None
