"""Virtual time: the real control code (law, LeaseBook, WorkerLease, RetryPolicy, Breaker) against server models.

Thousands of requests cost about a second. Workers, their exchange interval and the delay of a call to the controller
are parameters, so what is tuned here meets the same feedback it meets on a cluster. Here is the clock and what is due;
one run is a Cluster (evalpipe/sim/virtual_cluster.py), and several may share a server. Left out: workers never die
here, and retries have no budget.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalpipe.control.law import Law
from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Job, ServerModel
from evalpipe.sim.virtual_cluster import Cluster
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup


@dataclass(frozen=True, slots=True)
class Party:
    """One run: a law, its jobs and what is around it. is_guest: nobody waits for it to end."""

    law: Law
    jobs: Sequence[Job]
    setup: VirtualSetup
    is_guest: bool = False


class World:
    """The clock, the server, and what is due: events in time order, oldest first."""

    def __init__(self, model: ServerModel, *, horizon_s: float) -> None:
        self.model = model
        self.now = 0.0
        self.running_s = 0.0  # request-seconds that the server ran
        self._horizon_s = horizon_s
        self._owners: dict[int, Cluster] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def own(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """Tell of these jobs' events to the cluster. Raises ConfigError for an id that is taken."""
        before = len(self._owners)
        self._owners.update((job.job_id, cluster) for job in jobs)
        if len(self._owners) != before + len(jobs):
            raise ConfigError(f"job ids must be unique, got {len(jobs)} jobs with repeated ids")

    def run(self, awaited: Sequence[Cluster]) -> None:
        """Go on until these are done, or to the horizon."""
        while self.now < self._horizon_s and not all(cluster.is_done for cluster in awaited):
            self._step()

    def _step(self) -> None:
        """Move to the next instant; the server's own events come before ours at the same instant."""
        # the heap is never empty: every worker of a cluster that is not done has an exchange ahead of it
        at = min(self._heap[0][0], self.model.next_event_at(), self._horizon_s)
        self.running_s += self.model.running * (at - self.now)
        self.now = at
        for event in self.model.advance(at):
            self._owners[event.job_id].on_event(event)
        while self._heap and self._heap[0][0] <= at:
            heapq.heappop(self._heap)[2]()


def run_virtual(law: Law, model: ServerModel, jobs: Sequence[Job], *, setup: VirtualSetup | None = None) -> VirtualRun:
    """Run `jobs` under `law` against `model` until all are done or the horizon is reached.

    Takes over law and model: both are left as the run ended. Raises ConfigError for a job the server can never run
    and for job ids that are not unique.
    """
    return run_together([Party(law, jobs, setup or VirtualSetup())], model)[0]


def run_together(parties: Sequence[Party], model: ServerModel) -> list[VirtualRun]:
    """Run several clusters that know nothing of each other against one server, until all but the guests are done.

    Job ids are unique over all parties; the horizon is the first one's. Otherwise as `run_virtual`.
    """
    world = World(model, horizon_s=parties[0].setup.horizon_s)
    clusters = [Cluster(world, party.law, party.jobs, party.setup) for party in parties]
    for cluster, party in zip(clusters, parties, strict=True):
        world.own(cluster, party.jobs)
        cluster.start()
    world.run([cluster for cluster, party in zip(clusters, parties, strict=True) if not party.is_guest])
    return [cluster.outcome() for cluster in clusters]
