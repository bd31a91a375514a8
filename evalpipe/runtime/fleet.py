"""The fleet on Ray: the controller actor and the worker actors of one run.

Every call answers soon; what came in is collected by `collect`. A worker that died, or did not answer for a minute, is
an event like any other; a controller that did is replaced.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evalpipe.config import ControlConfig
from evalpipe.control.lease import Process
from evalpipe.control.quota import UNDECLARED, Quota
from evalpipe.control.warm import Settled
from evalpipe.errors import ConfigError, Resumable
from evalpipe.runtime.actors import CONTROLLER, WORKER
from evalpipe.runtime.clock import REAL, Clock
from evalpipe.runtime.controller import Predecessor
from evalpipe.runtime.messages import Died, Event, Poll, Recorded, Replied, WorkerSpec

log = logging.getLogger(__name__)

START_WITHIN_S = 900.0  # until a worker answers for the first time: cores may have to be waited for
ANSWER_WITHIN_S = 60.0  # a poll never waits for a request; a worker silent for so long is stuck or cut off
ASK_AGAIN_S = 1.0  # after a broken connection
# A process that was given up may live and send for a TTL, and what it sent may be out for as long as an answer takes:
# for so long a new controller is told of it.
REMEMBER_GIVEN_UP_S = 120.0
MAX_LOST_CONTROLLERS = 5  # without one answer in between
# Epochs stamped on permits rise over the whole run, so that a server's ledger can tell old permits from new: each
# driver has a range of its own, and a new controller leaves room for cuts that nobody read of the one before it.
EPOCHS_PER_DRIVER, EPOCHS_UNREAD = 1_000_000, 1_000
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
        _start_local(quiet)
        return True
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"no usable Ray at {address}: {reason} (with token authentication, set RAY_AUTH_MODE=token here too)"
        ) from None
    return True


def _start_local(quiet: dict[str, Any]) -> None:
    """Start a Ray of our own. Raises Resumable when the machine is too busy for it: Ray gives up after 30 s."""
    try:
        ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
    except Exception as error:  # Ray raises a bare Exception here
        ray.shutdown()
        reason = " ".join(str(error).split())[:200]
        raise Resumable(f"Ray did not start on this machine: {reason}; run the same command again") from error


def disconnect() -> None:
    ray.shutdown()


def cores() -> int:
    """Return the CPU cores of the whole cluster, at least 1."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def core_share(processes: int) -> float:
    """Return the part of a core that each of so many processes asks Ray for: more of them than cores is allowed."""
    return min(1.0, max(round(cores() / processes - 0.005, 2), 0.01))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that is out. worker: None where the controller was called. since: of the first time it was asked.

    broke_at: when the connection to the worker broke first, None while it did not.
    """

    worker: str | None
    since: float
    poll: Poll | None = None
    broke_at: float | None = None


class RayFleet:
    """Actors of one run. The controller shares the driver's node and fate.

    A controller that dies or hangs is replaced here: the new one goes on from what was last read of the law, and lends
    nobody more than it holds until every worker was heard.
    """

    def __init__(
        self,
        control: ControlConfig,
        workers: int,
        writer_epoch: int,
        settled: Settled | None = None,
        *,
        quota: Quota = UNDECLARED,
        clock: Clock = REAL,
    ) -> None:
        """settled: where an earlier run was, None to begin cold. quota: as declared."""
        self._control, self._quota, self._clock = control, quota, clock
        self._share = core_share(workers)
        self._workers: dict[str, Any] = {}
        self._incarnations: dict[str, int] = {}
        self._given_up: dict[Process, float] = {}  # when
        self._asked: dict[Any, _Asked] = {}
        self._broken: list[tuple[float, _Asked]] = []  # to be asked again at an instant
        self._is_up: set[str] = set()
        self._lost_controllers = 0  # since one was last heard
        self._before = Predecessor(epoch=(writer_epoch - 1) * EPOCHS_PER_DRIVER, settled=settled)
        self._controller = self._start_controller()

    @property
    def workers(self) -> Collection[str]:
        return self._workers.keys()

    def spawn(self, spec: WorkerSpec) -> None:
        self._is_up.discard(spec.name)
        self._incarnations[spec.name] = spec.incarnation
        self._workers[spec.name] = WORKER.options(num_cpus=self._share).remote(spec, self._controller)

    def can_poll(self, worker: str) -> bool:
        out = [*self._asked.values(), *(asked for _, asked in self._broken)]
        return worker in self._workers and all(asked.worker != worker for asked in out)

    def poll(self, worker: str, poll: Poll) -> None:
        self._ask(_Asked(worker, self._clock.now(), poll))

    def ask_control(self) -> None:
        if all(asked.worker is not None for asked in self._asked.values()):
            self._asked[self._controller.read.remote()] = _Asked(None, self._clock.now())

    def collect(self, *, timeout_s: float) -> Sequence[Event]:
        """See Fleet. Raises Resumable when one controller after the other dies."""
        self._ask_again()
        if not self._asked:
            self._clock.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        events = [self._read(ref) for ref in ready] + self._silent()
        return [event for event in events if event is not None]

    def bury(self, worker: str, *, is_sure: bool) -> None:
        handle = self._workers.pop(worker, None)
        self._asked = {ref: asked for ref, asked in self._asked.items() if asked.worker != worker}
        self._broken = [(at, asked) for at, asked in self._broken if asked.worker != worker]
        if handle is not None:
            ray.kill(handle)
        process = (worker, self._incarnations[worker])
        if is_sure:
            self._controller.release.remote(process)
        else:
            self._given_up[process] = self._clock.now()

    def stop(self) -> None:
        for handle in [*self._workers.values(), self._controller]:
            ray.kill(handle)
        self._workers.clear()
        self._asked.clear()

    def _read(self, ref: Any) -> Event | None:
        asked = self._asked.pop(ref)
        try:
            answer = ray.get(ref)
        except RayError as error:
            return self._on_error(asked, error)
        if asked.worker is None:
            self._lost_controllers = 0
            self._before = Predecessor(self._before.epoch, answer.state, pace=answer.pace)
            return Recorded(answer)
        self._is_up.add(asked.worker)
        return Replied(asked.worker, answer)

    def _ask(self, asked: _Asked) -> None:
        assert asked.worker is not None
        self._asked[self._workers[asked.worker].poll.remote(asked.poll)] = asked

    def _ask_again(self) -> None:
        now = self._clock.now()
        due = [asked for at, asked in self._broken if at <= now]
        self._broken = [(at, asked) for at, asked in self._broken if at > now]
        for asked in due:
            self._ask(asked)

    def _on_error(self, asked: _Asked, error: RayError) -> Event | None:
        """Unavailable means that the connection broke: the worker may live behind a cut link, and send until its TTL.

        It is asked the same again for so long; shards are known by their id.
        """
        now = self._clock.now()
        is_broken = isinstance(error, ActorUnavailableError) and asked.worker is not None
        broke_at = now if asked.broke_at is None else asked.broke_at
        if is_broken and now - broke_at <= self._control.ttl_s:
            self._broken.append((now + ASK_AGAIN_S, replace(asked, broke_at=broke_at)))
            return None
        return self._on_loss(asked.worker, _one_line(error), is_sure=_is_process_death(error))

    def _silent(self) -> list[Event | None]:
        now = self._clock.now()
        late = [ref for ref, asked in self._asked.items() if now - asked.since > self._patience(asked.worker)]
        return [self._on_loss(self._asked.pop(ref).worker, "it does not answer", is_sure=False) for ref in late]

    def _patience(self, worker: str | None) -> float:
        if worker is None:
            return START_WITHIN_S if self._before.state is None else self._control.ttl_s / 2
        return ANSWER_WITHIN_S if worker in self._is_up else START_WITHIN_S

    def _on_loss(self, worker: str | None, reason: str, *, is_sure: bool) -> Event | None:
        if worker is not None:
            return Died(worker, reason, is_sure)
        self._lost_controllers += 1
        log.warning("controller lost=%d reason=%s", self._lost_controllers, reason)
        if self._lost_controllers > MAX_LOST_CONTROLLERS:
            raise Resumable(f"{self._lost_controllers} controllers were lost in a row: {reason}; run the command again")
        ray.kill(self._controller)
        self._replace_controller()
        return None

    def _replace_controller(self) -> None:
        """Start a controller that knows what was last read of the one before it, and make the workers turn to it."""
        state = self._before.state
        epoch = max(self._before.epoch, state.epoch if state is not None else 0) + EPOCHS_UNREAD
        self._before = Predecessor(epoch, state, self._sending(), pace=self._before.pace)
        self._controller = self._start_controller()
        for handle in self._workers.values():
            handle.meet.remote(self._controller)

    def _sending(self) -> frozenset[Process]:
        """Return the processes that may have requests out, whether or not we still speak to them."""
        now = self._clock.now()
        doubtful = {process for process, at in self._given_up.items() if now - at <= REMEMBER_GIVEN_UP_S}
        return frozenset(doubtful | {(name, self._incarnations[name]) for name in self._workers})

    def _start_controller(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return CONTROLLER.options(scheduling_strategy=here).remote(self._control, self._before, quota=self._quota)


def _is_process_death(error: RayError) -> bool:
    """Tell whether Ray saw the process end. Of a lost node it only guesses: its workers may send until their TTL.

    Ray has the cause in words only; an unknown wording counts as a guess, which costs idle permits for a TTL.
    """
    return isinstance(error, ActorDiedError) and "worker process has died" in str(error)


def _one_line(error: RayError) -> str:
    """Return what Ray knows of a death, without its advice on everything that could have been."""
    text = " ".join(str(error).split())
    known = re.search(r"actor (?:is dead|died) because (.*?)(?= Some common causes|$)", text)
    return f"{type(error).__name__}: {(known[1] if known else text)[:200]}"
