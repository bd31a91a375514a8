"""Several equal servers behind one address. The balancer is blind to load, or sends to the least loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel


@dataclass(frozen=True, slots=True)
class BalancerParams:
    """replicas: how many equal servers. route: "round_robin" or "least_loaded" (fewest in flight, first of equals)."""

    replicas: int = 1
    route: str = "round_robin"

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"replicas must be at least 1, got {self.replicas}")
        if self.route not in ("round_robin", "least_loaded"):
            raise ConfigError(f"route must be 'round_robin' or 'least_loaded', got {self.route!r}")


class Replicas:
    """See ServerModel. A rejection of the chosen replica is the client's: no second choice."""

    def __init__(self, models: Sequence[ServerModel], *, route: str) -> None:
        self._models = models
        self._is_blind = route == "round_robin"
        self._next = 0
        self._home: dict[int, ServerModel] = {}

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        model = self._choose()
        rejection = model.submit(job, now=now)
        if rejection is None:
            self._home[job.job_id] = model
        return rejection

    def cancel(self, job_id: int, *, now: float) -> None:
        model = self._home.pop(job_id, None)
        if model is not None:
            model.cancel(job_id, now=now)

    def resize(self, share: float) -> None:
        for model in self._models:
            model.resize(share)

    def next_event_at(self) -> float:
        return min(model.next_event_at() for model in self._models)

    def advance(self, now: float) -> list[Event]:
        events = [event for model in self._models for event in model.advance(now)]
        for event in events:
            if event.kind == "done":
                del self._home[event.job_id]
        return sorted(events, key=lambda event: event.at)  # stable: of one instant, in order of the replicas

    def tokens_of(self, job_id: int) -> int:
        model = self._home.get(job_id)
        return 0 if model is None else model.tokens_of(job_id)

    def _choose(self) -> ServerModel:
        if not self._is_blind:
            return min(self._models, key=lambda model: model.in_flight)
        model = self._models[self._next % len(self._models)]
        self._next += 1
        return model

    @property
    def in_flight(self) -> int:
        return sum(model.in_flight for model in self._models)

    @property
    def running(self) -> int:
        return sum(model.running for model in self._models)

    @property
    def waiting(self) -> int:
        return sum(model.waiting for model in self._models)

    @property
    def preemptions(self) -> int:
        return sum(model.preemptions for model in self._models)

    @property
    def tokens_emitted(self) -> int:
        return sum(model.tokens_emitted for model in self._models)

    @property
    def prefill_done(self) -> int:
        return sum(model.prefill_done for model in self._models)

    @property
    def kv_used(self) -> float:
        return sum(model.kv_used for model in self._models) / len(self._models)
