"""A course: a server, and the jobs that it is given. Data; evalpipe/sim/scenarios.py and wide.py fill it in."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.engine import Job, ServerModel
from evalpipe.sim.profiles import Profile
from evalpipe.sim.replicas import Replicas

MAX_PROMPT = 4_000


@dataclass(frozen=True, slots=True)
class Course:
    """A server and how many jobs of what kind it is given.

    Prompt tokens are lognormal, median prompt_median, at most MAX_PROMPT; output and work are the profile's.
    shifted_median: of the prompts of the second half, None: as the first. speeds: of replicas that are not alike, each
    as a factor of the profile's own, behind a balancer that sends to the least loaded.
    """

    name: str
    profile: Profile
    jobs: int
    prompt_median: float = 75.0
    prompt_sigma: float = 0.9
    shifted_median: float | None = None
    speeds: tuple[float, ...] = ()

    def draw(self, seed: int) -> list[Job]:
        """Return the jobs, ids from 0; the same for the same seed, the first n of more jobs included."""
        rng = random.Random(f"jobs/{seed}")
        return [self._job(job_id, rng) for job_id in range(self.jobs)]

    def server(self, seed: int) -> ServerModel:
        """Return an idle server; another tenant's load follows from the seed."""
        if not self.speeds:
            return self.profile.build(seed)
        server = self.profile.server
        assert isinstance(server, BatchingParams), "only a batching server has a speed"
        return Replicas([Batching(_faster(server, speed)) for speed in self.speeds], route="least_loaded")

    def _job(self, job_id: int, rng: random.Random) -> Job:
        is_shifted = self.shifted_median is not None and job_id >= self.jobs // 2
        median = self.shifted_median if is_shifted and self.shifted_median is not None else self.prompt_median
        prompt = median * math.exp(self.prompt_sigma * rng.gauss(0, 1))
        prompt_tokens = min(max(round(prompt), 1), MAX_PROMPT)
        demand = self.profile.answers.draw(rng, prompt_tokens=prompt_tokens)
        return Job(job_id, prompt_tokens, demand.output_tokens, demand.work)


def _faster(server: BatchingParams, speed: float) -> BatchingParams:
    costs = ("step_s", "per_seq_s", "per_prefill_token_s", "per_kv_token_s", "per_seq_squared_s")
    changed: dict[str, Any] = {cost: getattr(server, cost) / speed for cost in costs}
    return replace(server, **changed)
