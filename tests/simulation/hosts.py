"""Who is who: pids and host names as the processes of a simulation see them (the parts of `os` and `socket` used)."""

from __future__ import annotations

import os
from typing import Any

from simulation.scheduler import Process, Scheduler


class Hosts:
    """Stands in for the modules `os` and `socket` where the product asks for its pid, its host or another's life.

    moves: each driver, with its workers, is on a host of its own, where nobody can look an older pid up.
    """

    def __init__(self, scheduler: Scheduler, *, moves: bool) -> None:
        self._scheduler, self._moves = scheduler, moves
        self._processes: list[Process] = []

    def register(self, process: Process) -> Process:
        self._processes.append(process)
        return process

    def getpid(self) -> int:
        return 1000 + self._processes.index(self._here())

    def kill(self, pid: int, number: int) -> None:
        if not self._processes[pid - 1000].is_alive:
            raise ProcessLookupError(pid)

    def gethostname(self) -> str:
        return f"host{self.getpid() if self._moves else 0}"

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _here(self) -> Process:
        assert self._scheduler.current is not None, "asked by code of a process"
        return self._scheduler.current.process
