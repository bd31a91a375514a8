"""Who sends a row of a load test: this process alone (LocalCrew), or several that share it (load_ray.RayCrew)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from evalpipe.config import SamplingConfig
from evalpipe.endpoint.client import Endpoint
from evalpipe.endpoint.preflight import Preflight
from evalpipe.loadtest.arrivals import share_of
from evalpipe.loadtest.probe import Loop
from evalpipe.loadtest.records import LoadRun, Request
from evalpipe.runtime.load_loop import Bounds, Health, LoadLoop, LoadSender
from evalpipe.runtime.load_prompts import Prompts
from evalpipe.runtime.schedule import ScheduleGate, UsersGate

LEAD_S = 0.1  # between the decision to start and the first instant
FAILED_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadJob:
    """One row to send. instants: arrivals of an open loop, or when the users of a closed one join; seconds.

    The n-th request asks prompt first_prompt + n * stride.
    """

    loop: Loop
    instants: Sequence[float]
    until_s: float
    drain_s: float
    most_in_flight: int
    first_prompt: int = 0
    stride: int = 1

    def share(self, worker: int, workers: int) -> LoadJob:
        """Return what one of the workers does: its instants by index, its prompts, its part of the bound."""
        return replace(
            self,
            instants=share_of(self.instants, worker=worker, workers=workers),
            most_in_flight=max(self.most_in_flight // workers, 1),
            first_prompt=self.first_prompt + worker,
            stride=workers,
        )


class Crew(Protocol):
    async def run(
        self,
        job: LoadJob,
        prompts: Prompts,
        *,
        is_certain: Callable[[Sequence[Request], float], bool],
        is_interrupted: Callable[[], bool],
    ) -> tuple[LoadRun, Health]:
        """Send the job; return all requests in order of their schedule. See Bounds for the questions."""

    async def aclose(self) -> None: ...


class LocalCrew:
    """Sends from the event loop that it is used in."""

    def __init__(self, looked: Preflight, sampling: SamplingConfig, *, cap: int) -> None:
        self._endpoint = connect(looked, sampling, cap=cap)

    async def run(
        self,
        job: LoadJob,
        prompts: Prompts,
        *,
        is_certain: Callable[[Sequence[Request], float], bool],
        is_interrupted: Callable[[], bool],
    ) -> tuple[LoadRun, Health]:
        return await send(self._endpoint, job, prompts, is_certain=is_certain, is_interrupted=is_interrupted)

    async def aclose(self) -> None:
        await self._endpoint.aclose()


async def send(
    sender: LoadSender,
    job: LoadJob,
    prompts: Prompts,
    *,
    is_certain: Callable[[Sequence[Request], float], bool],
    is_interrupted: Callable[[], bool],
) -> tuple[LoadRun, Health]:
    """Send one job from this process; see Crew."""
    zero_at = time.monotonic() + LEAD_S
    loop = LoadLoop(sender, lambda number: prompts(job.first_prompt + number * job.stride), zero_at=zero_at)
    bounds = Bounds(
        job.until_s,
        job.drain_s,
        job.most_in_flight,
        failed_wait_s=FAILED_WAIT_S if job.loop == "closed" else 0.0,
        is_certain=is_certain,
        is_interrupted=is_interrupted,
    )
    gate = ScheduleGate if job.loop == "open" else UsersGate
    return await loop.run(gate(job.instants, zero_at=zero_at, clock=time.monotonic), bounds)


def connect(looked: Preflight, sampling: SamplingConfig, *, cap: int) -> Endpoint:
    """Return a client of the server that preflight saw, for at most `cap` requests at a time."""
    return Endpoint(looked.config, sampling, model=looked.model, base_url=looked.base_url, cap=cap)
