"""The two Ray actors: shells that stamp the time, call the core and return. They hold no policy."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from evalpipe.config import ControlConfig
from evalpipe.control.lease import Lease, Report
from evalpipe.control.quota import Quota
from evalpipe.endpoint.failures import make
from evalpipe.endpoint.keys import has_key
from evalpipe.errors import EndpointError, EvalPipeError, Failure, RunFatal
from evalpipe.runtime.controller import Controller, Predecessor
from evalpipe.runtime.lean import calm_gc, spare_pandas
from evalpipe.runtime.messages import Poll, PollReply, WorkerSpec
from evalpipe.runtime.worker import WorkerLoop
from evalpipe.store.open import open_store
from evalpipe.store.spec import read_spec


class ControllerActor(Controller):
    """Owns the one limit. Every method answers at once: a parked call would block the one that frees it."""

    def __init__(self, config: ControlConfig, before: Predecessor, *, quota: Quota) -> None:
        super().__init__(config, before, quota=quota, cpu_s=time.process_time)


class WorkerActor:
    """One process that sends requests. Its loop starts with the actor; the driver polls it."""

    def __init__(self, spec: WorkerSpec, controller: Any) -> None:
        logging.basicConfig(level=logging.WARNING, format="time=%(asctime)s level=%(levelname)s %(message)s")
        self._spec, self._controller = spec, controller
        self._loop: WorkerLoop | None = None
        self._starting = asyncio.Lock()

    async def poll(self, poll: Poll) -> PollReply:
        async with self._starting:
            if self._loop is None:
                try:
                    check_key(self._spec)
                    check_store(self._spec)
                    self._loop = WorkerLoop(self._spec, self._exchange)
                except EndpointError as error:
                    return PollReply(fatal=error.failure, is_drained=True)
                calm_gc()
                spare_pandas()
                self._loop.start()
        return await self._loop.poll(poll)

    async def meet(self, controller: Any) -> None:
        """Turn to another controller: the one before is dead."""
        self._controller = controller

    async def _exchange(self, report: Report) -> Lease:
        try:
            lease: Lease = await self._controller.exchange.remote(report)
        except RayTaskError:
            raise  # the controller itself failed: to ask again would not help
        except RayError as error:
            raise ConnectionError(f"controller: {type(error).__name__}") from None
        return lease


def check_store(spec: WorkerSpec) -> None:
    """Raise RunFatal where this host does not see the run's folder: what it wrote there would be lost."""
    try:
        is_there = read_spec(open_store(spec.store_url)).sha256 == spec.spec_sha256
    except (EvalPipeError, OSError):
        is_there = False
    if not is_there:
        where = socket.gethostname()
        message = f"{spec.store_url} is not the same folder on {where}; give -o a shared folder or s3://.."
        raise RunFatal(Failure("config", message=message))


def check_key(spec: WorkerSpec) -> None:
    """Raise RunFatal of kind "auth" where the driver has an API key and this worker's host was not given one."""
    name = spec.config.endpoint.api_key_env
    if spec.needs_key and not has_key(name, os.environ):
        raise make(
            "auth",
            f"{name} is set for the driver, not for the workers on {socket.gethostname()}; export it there"
            " before `ray start` (keys do not travel with jobs)",
        )


# max_task_retries would run every request in flight again from the start, paid twice: we supervise ourselves
CONTROLLER = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(ControllerActor)
WORKER = ray.remote(max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(WorkerActor)
