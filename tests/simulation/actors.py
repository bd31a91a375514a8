"""The two actors of a run as simulated processes: thin shells around the real WorkerLoop and the real Controller."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from typing import Any

from simulation.loop import VirtualLoop
from simulation.network import Network
from simulation.ray_double import Handle
from simulation.scheduler import Process, Scheduler
from simulation.server import ModelServer, SimSender

from evalpipe.config import ControlConfig
from evalpipe.control.lease import Lease, Report
from evalpipe.control.quota import Quota
from evalpipe.runtime.clock import Clock
from evalpipe.runtime.controller import Controller, Predecessor
from evalpipe.runtime.messages import Poll, WorkerSpec
from evalpipe.runtime.worker import WorkerLoop
from evalpipe.store.objects import ObjectStore

START_S = 0.4  # until a new worker process answers
PROBES = 40  # growth is lent in steps

Answer = Callable[[Any], None]


class SimController:
    """The controller's process. Every method answers at once; what it raises travels back."""

    def __init__(
        self, scheduler: Scheduler, process: Process, config: ControlConfig, before: Predecessor, quota: Quota
    ) -> None:
        self.process, self._config = process, config
        self._ahead_s = 0.0
        self._controller = Controller(
            config, copy.deepcopy(before), quota=quota, now=lambda: scheduler.now + self._ahead_s
        )

    def find_leak(self) -> str:
        """Return what is wrong when a TTL later the whole limit cannot be lent to somebody new, "" if it can."""
        self._ahead_s = 2 * self._config.ttl_s
        for sequence in range(1, PROBES):
            self._ahead_s += 1.0
            lease = self._controller.exchange(Report("probe", 1, sequence, held=0, want=1_000_000))
            if lease.permits == lease.limit:
                return ""
        return f"{self.process.name} lends {lease.permits} of {lease.limit} permits when nobody else has any"

    def handle(self, method: str, argument: Any, answer: Answer) -> None:
        try:
            value = getattr(self._controller, method)(*(() if argument is None else (argument,)))
        except Exception as error:
            answer(error)
        else:
            answer(copy.deepcopy(value) if method == "read" else value)  # its law goes on changing


class SimWorker:
    """A worker's process: its loop starts with the first poll, as in runtime.actors.WorkerActor."""

    def __init__(
        self,
        scheduler: Scheduler,
        process: Process,
        *,
        spec: WorkerSpec,
        controller: Handle,
        network: Network,
        server: ModelServer,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.process, self.spec = process, spec
        self._scheduler, self._network, self._server, self._store = scheduler, network, server, store
        self._controller, self._clock = controller, clock
        self._up_at = scheduler.now + rng.uniform(0.3, 1.0) * START_S
        self._loop = VirtualLoop(scheduler, process)
        self._worker: WorkerLoop | None = None
        self.leaks: list[str] = []
        process.on_death[self] = self._on_death

    def handle(self, method: str, argument: Any, answer: Answer) -> None:
        if method == "meet":
            self._controller = argument
            answer(None)
        else:
            self._loop.spawn(self._poll(argument, answer))

    async def _poll(self, poll: Poll, answer: Answer) -> None:
        if self._clock.now() < self._up_at:
            await asyncio.sleep(self._up_at - self._clock.now())
        if self._worker is None:
            sender = SimSender(self._server, self._scheduler, self._loop, self.process)
            self._worker = WorkerLoop(self.spec, self._exchange, sender=sender, store=self._store, clock=self._clock)
            self._worker.start()
        reply = await self._worker.poll(poll)
        if reply.is_drained and (reply.in_flight or self._server.open_of(self.process)):
            self.leaks.append(f"{self.process.name} is drained and has {reply.in_flight} permits out")
        answer(reply)

    async def _exchange(self, report: Report) -> Lease:
        future: asyncio.Future[Lease] = self._loop.create_future()
        controller = self._controller.actor

        def settle(value: Any) -> None:
            if not future.done():
                (future.set_exception if isinstance(value, Exception) else future.set_result)(value)
                self._loop.pump()

        self._network.call(
            self.process,
            controller.process,
            "exchange",
            ask=lambda answer: controller.handle("exchange", report, answer),
            on_reply=settle,
            on_failure=lambda: settle(ConnectionError("controller")),
        )
        return await future

    def close(self) -> None:
        """End the tasks of a dead worker; whatever they try, the world does not hear of it."""
        self._loop.bury()

    def _on_death(self) -> None:
        self._server.forget(self.process)
        self._scheduler.after(0.0, self.close)
