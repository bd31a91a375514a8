"""Ray as runtime.fleet.RayFleet uses it, in virtual time: handles, references, wait, get and kill.

The real RayFleet runs on it, so that its supervision (patience, replaced controllers, burials) is what is tested. A
call to an actor may be lost; a killed actor that is cut off lives on until it can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
from simulation.network import Network
from simulation.scheduler import Process, Scheduler, Strand

KILL_S = 0.05  # until a killed actor is gone
CORES = 2
WAIT_S = 0.2  # a wait in vain takes at least so long: Ray may be slow, and fewer turns are more seeds


class Actor(Protocol):
    """A process that is called. handle: takes a method's name, its argument, and the way back for the answer."""

    process: Process

    def handle(self, method: str, argument: Any, answer: Callable[[Any], None]) -> None: ...


class Ref:
    """The answer of one call, once it is there."""

    def __init__(self) -> None:
        self.is_ready = False
        self._value: Any = None
        self._error: Exception | None = None
        self._waiter: Strand | None = None

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        self.is_ready, self._value, self._error = True, value, error
        if self._waiter is not None:
            self._waiter.wake()

    def wait_in(self, strand: Strand | None) -> None:
        self._waiter = strand

    def get(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class Handle:
    """What a process holds of an actor: `handle.method.remote(argument)`."""

    def __init__(self, world: RayDouble, actor: Actor) -> None:
        self._world, self.actor = world, actor

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda argument=None: self._world.call(self.actor, method, argument))


class RayDouble:
    """Stands in for the module `ray`. Each call is made by the process whose strand runs."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self._scheduler, self._network = scheduler, network

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(CORES)}

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "00" * 28)

    def call(self, actor: Actor, method: str, argument: Any) -> Ref:
        caller, ref = self._strand().process, Ref()
        caller.check()
        self._network.call(
            caller,
            actor.process,
            method,
            ask=lambda answer: actor.handle(method, argument, answer),
            on_reply=lambda value: ref.settle(
                **({"error": value} if isinstance(value, Exception) else {"value": value})
            ),
            on_failure=lambda: ref.settle(error=_loss(actor.process)),
        )
        return ref

    def wait(self, refs: Sequence[Ref], *, num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        """Wait for one reference, as RayFleet does, or look which are ready (timeout 0)."""
        strand = self._strand()
        strand.process.check()
        if timeout > 0 and not any(ref.is_ready for ref in refs):
            for ref in refs:
                ref.wait_in(strand)
            strand.sleep(max(timeout, WAIT_S), can_be_woken=True)
            for ref in refs:
                ref.wait_in(None)
        ready = [ref for ref in refs if ref.is_ready][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: Ref) -> Any:
        return ref.get()

    def kill(self, handle: Handle) -> None:
        self._strand().process.check()
        self.kill_process(handle.actor.process)

    def kill_process(self, process: Process) -> None:
        """SIGKILL: reaches a process that stands still, not one that is cut off."""
        reachable_s = self._network.cut_for(process)
        self._scheduler.after(reachable_s + KILL_S, process.kill)

    def _strand(self) -> Strand:
        assert self._scheduler.current is not None, "Ray is called by drivers only"
        return self._scheduler.current


def _loss(process: Process) -> RayActorError:
    return ActorUnavailableError("no answer", b"0" * 16) if process.is_alive else ActorDiedError()
