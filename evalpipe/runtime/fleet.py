"""The fleet: Ray, the controller actor and the worker actors of one run, as the driver sees them.

Every call answers soon; what came in is collected by `collect`. A worker that died, or did not answer for a minute, is
an event like any other.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evalpipe.config import ControlConfig
from evalpipe.errors import ConfigError, Resumable
from evalpipe.runtime.actors import CONTROLLER, WORKER, ControlRecords
from evalpipe.runtime.messages import Poll, PollReply, WorkerSpec

log = logging.getLogger(__name__)

START_WITHIN_S = 900.0  # until a worker answers for the first time: cores may have to be waited for
ANSWER_WITHIN_S = 60.0  # a poll never waits for a request; a worker silent for so long is stuck or cut off
OBJECT_STORE_BYTES = 256 * 2**20  # nothing of size passes through Ray's store
#: For a Ray of our own: workers that measure latency must not run at nice 15, idle ones need not be started first
#: (3 to 4 s of a start on 2 cores), and nothing is reported home.
LOCAL_ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def connect(address: str | None) -> bool:
    """Join the Ray at `address` or in RAY_ADDRESS, else start one on this machine; False if we were in one already.

    Raises ConfigError when there is none at the address.
    """
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        for name, value in LOCAL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
        return True
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"no usable Ray at {address}: {reason} (with token authentication, set RAY_AUTH_MODE=token here too)"
        ) from None
    return True


def disconnect() -> None:
    ray.shutdown()


def cores() -> int:
    """Return the CPU cores of the whole cluster, at least 1."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


@dataclass(frozen=True, slots=True)
class Replied:
    """A worker answered its poll."""

    worker: str
    reply: PollReply


@dataclass(frozen=True, slots=True)
class Died:
    """A worker is gone; reason is for the log."""

    worker: str
    reason: str


@dataclass(slots=True)
class _Asked:
    worker: str
    since: float


class Fleet:
    """Actors of one run. The controller shares the driver's node and fate."""

    def __init__(self, control: ControlConfig, *, workers: int) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._controller = CONTROLLER.options(scheduling_strategy=here).remote(control)
        self._share = min(1.0, max(round(cores() / workers - 0.005, 2), 0.01))  # more workers than cores is allowed
        self._workers: dict[str, Any] = {}
        self._asked: dict[Any, _Asked] = {}
        self._is_up: set[str] = set()

    @property
    def workers(self) -> Mapping[str, Any]:
        return self._workers

    def spawn(self, spec: WorkerSpec) -> None:
        """Start a worker process; it answers its first poll when it is up."""
        self._is_up.discard(spec.name)
        self._workers[spec.name] = WORKER.options(num_cpus=self._share).remote(spec, self._controller)

    def can_poll(self, worker: str) -> bool:
        """Say whether the worker lives and has no poll out."""
        return worker in self._workers and all(asked.worker != worker for asked in self._asked.values())

    def poll(self, worker: str, poll: Poll) -> None:
        self._asked[self._workers[worker].poll.remote(poll)] = _Asked(worker, time.monotonic())

    def collect(self, *, timeout_s: float) -> list[Replied | Died]:
        """Wait until something came in, at most timeout_s; return all that did."""
        if not self._asked:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        return [self._read(ref) for ref in ready] + self._silent()

    def read_control(self) -> ControlRecords:
        """Read the controller. Raises Resumable when it is gone."""
        try:
            records: ControlRecords = ray.get(self._controller.read.remote(), timeout=ANSWER_WITHIN_S)
        except (RayError, GetTimeoutError) as error:
            raise Resumable(f"the controller is gone ({type(error).__name__}); run the same command to go on") from None
        return records

    def bury(self, worker: str) -> None:
        """Make sure a dead worker is dead and its permits are free."""
        handle = self._workers.pop(worker, None)
        self._asked = {ref: asked for ref, asked in self._asked.items() if asked.worker != worker}
        if handle is not None:
            ray.kill(handle)
        self._controller.release.remote(worker)

    def stop(self) -> None:
        """End all actors at once."""
        for handle in [*self._workers.values(), self._controller]:
            ray.kill(handle)
        self._workers.clear()
        self._asked.clear()

    def _read(self, ref: Any) -> Replied | Died:
        asked = self._asked.pop(ref)
        try:
            reply = ray.get(ref)
            self._is_up.add(asked.worker)
            return Replied(asked.worker, reply)
        except RayError as error:
            log.warning("worker=%s died=%s", asked.worker, " ".join(str(error).split())[:500])
            return Died(asked.worker, f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}")

    def _silent(self) -> list[Replied | Died]:
        now = time.monotonic()
        late = [ref for ref, asked in self._asked.items() if now - asked.since > self._patience(asked.worker)]
        return [Died(self._asked.pop(ref).worker, "it does not answer") for ref in late]

    def _patience(self, worker: str) -> float:
        return ANSWER_WITHIN_S if worker in self._is_up else START_WITHIN_S
