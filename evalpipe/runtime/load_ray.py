"""Several sender processes on Ray share a row: each has its arrivals by index, its prompts and its connections.

For more than one core can stream (some 10,000 tokens/s), or from several hosts. Each sender counts from its own start
of the row; their starts differ by the time of a call, some milliseconds, which moves shares of a Poisson process
against each other and leaves it one. Early ends by certainty are left out: no process sees all requests meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from evalpipe.config import SamplingConfig
from evalpipe.endpoint.client import Endpoint
from evalpipe.endpoint.preflight import Preflight
from evalpipe.errors import Resumable
from evalpipe.loadtest.records import LoadRun, Request
from evalpipe.runtime.fleet import core_share
from evalpipe.runtime.lean import calm_gc
from evalpipe.runtime.load_crew import LoadJob, connect, send
from evalpipe.runtime.load_loop import Health
from evalpipe.runtime.load_prompts import Prompts

ASK_S = 0.1  # how often the driver looks for a signal


class LoadActor:
    """One sender. Its part of a row runs inside one call; `stop` ends it early, `ready` answers once it is up."""

    def __init__(self, looked: Preflight, sampling: SamplingConfig, cap: int) -> None:
        self._looked, self._sampling, self._cap = looked, sampling, cap
        self._endpoint: Endpoint | None = None
        self._is_stopped = False

    async def ready(self) -> None:
        if self._endpoint is None:
            self._endpoint = connect(self._looked, self._sampling, cap=self._cap)
            calm_gc()

    async def run(self, job: LoadJob, prompts: Prompts) -> tuple[LoadRun, Health]:
        assert self._endpoint is not None, "ready comes first"
        return await send(
            self._endpoint,
            job,
            prompts,
            is_certain=lambda requests, now: False,
            is_interrupted=lambda: self._is_stopped,
        )

    async def stop(self) -> None:
        self._is_stopped = True


# a call that is run again would send its requests again
_ACTOR = ray.remote(max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(LoadActor)


class RayCrew:
    """`workers` senders on the Ray that this process is connected to. Build it inside the event loop that uses it."""

    def __init__(self, looked: Preflight, sampling: SamplingConfig, *, cap: int, workers: int) -> None:
        share = core_share(workers)
        part = max(cap // workers, 1)
        self._actors = [_ACTOR.options(num_cpus=share).remote(looked, sampling, part) for _ in range(workers)]
        self._is_up = False

    async def run(
        self,
        job: LoadJob,
        prompts: Prompts,
        *,
        is_certain: Callable[[Sequence[Request], float], bool],
        is_interrupted: Callable[[], bool],
    ) -> tuple[LoadRun, Health]:
        """See Crew; is_certain is never asked. Raises Resumable when a sender is lost."""
        count = len(self._actors)
        try:
            if not self._is_up:
                await asyncio.gather(*(_future(actor.ready.remote()) for actor in self._actors))
                self._is_up = True
            jobs = [(actor, job.share(number, count)) for number, actor in enumerate(self._actors)]
            parts = [_future(actor.run.remote(part, prompts)) for actor, part in jobs if part.instants]
            while (await asyncio.wait(parts, timeout=ASK_S))[1]:
                if is_interrupted():
                    for actor in self._actors:
                        actor.stop.remote()
            return merge([part.result() for part in parts])
        except RayError as error:
            raise Resumable(f"a sender of the load test was lost: {type(error).__name__}; run it again") from None

    async def aclose(self) -> None:
        for actor in self._actors:
            ray.kill(actor)


def merge(parts: Sequence[tuple[LoadRun, Health]]) -> tuple[LoadRun, Health]:
    """Return the row that all senders made together: the busiest of them counts for the client's health."""
    runs = [run for run, _ in parts]
    requests = sorted((request for run in runs for request in run.requests), key=lambda each: each.scheduled_at)
    run = LoadRun(
        requests,
        (),
        sent_until=min(run.sent_until for run in runs),
        ended_at=max(run.ended_at for run in runs),
        is_flooded=any(run.is_flooded for run in runs),
    )
    busiest = max(health.cpu_share for _, health in parts)
    return run, Health(busiest, [lag_s for _, health in parts for lag_s in health.lag_s])


def _future(ref: Any) -> asyncio.Future[Any]:
    return asyncio.wrap_future(ref.future())
