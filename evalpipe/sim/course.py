"""A course: a server, what happens to it, and the jobs it is given. Data, filled in by scenarios.py and wide.py."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.engine import Job, ServerModel
from evalpipe.sim.profiles import Profile
from evalpipe.sim.replicas import Replicas
from evalpipe.sim.trouble import Trouble

MAX_PROMPT = 4_000


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """Some prompts are of `tokens`: in each equal part of the jobs another share of them."""

    tokens: int
    shares: tuple[float, ...]

    def share_of(self, job_id: int, jobs: int) -> float:
        return self.shares[job_id * len(self.shares) // jobs]


@dataclass(frozen=True, slots=True)
class Course:
    """A server and how many jobs of what kind it is given.

    Prompt tokens are lognormal, median prompt_median, at most MAX_PROMPT; output and work are the profile's.
    shifted_median: of the prompts of the second half, None: as the first. long_prompts: take the place of some.
    cached_share: of the prompts are in the server's prefix cache, but for their last tenth.
    speeds: of replicas that are not alike, each as a factor of the profile's own, behind a balancer that sends to the
    least loaded. troubles: what happens to the server, the first the nearest to it.
    """

    name: str
    profile: Profile
    jobs: int
    prompt_median: float = 75.0
    prompt_sigma: float = 0.9
    shifted_median: float | None = None
    long_prompts: LongPrompts | None = None
    cached_share: float = 0.0
    speeds: tuple[float, ...] = ()
    troubles: tuple[Trouble, ...] = ()

    def draw(self, seed: int) -> list[Job]:
        """Return the jobs, ids from 0; the same for the same seed, the first n of more jobs included."""
        rng = random.Random(f"jobs/{seed}")
        return [self._job(job_id, rng) for job_id in range(self.jobs)]

    def server(self, seed: int) -> ServerModel:
        """Return an idle server; another tenant's load follows from the seed."""
        model = self.profile.build(seed) if not self.speeds else self._replicas()
        for trouble in self.troubles:
            model = trouble.around(model)
        return model

    def _replicas(self) -> ServerModel:
        server = self.profile.server
        assert isinstance(server, BatchingParams), "only a batching server has a speed"
        return Replicas([Batching(_faster(server, speed)) for speed in self.speeds], route="least_loaded")

    def _job(self, job_id: int, rng: random.Random) -> Job:
        is_shifted = self.shifted_median is not None and job_id >= self.jobs // 2
        median = self.shifted_median if is_shifted and self.shifted_median is not None else self.prompt_median
        prompt = median * math.exp(self.prompt_sigma * rng.gauss(0, 1))
        prompt_tokens = min(max(round(prompt), 1), MAX_PROMPT)
        if self.long_prompts is not None and rng.random() < self.long_prompts.share_of(job_id, self.jobs):
            prompt_tokens = self.long_prompts.tokens
        is_cached = self.cached_share > 0 and rng.random() < self.cached_share
        demand = self.profile.answers.draw(rng, prompt_tokens=prompt_tokens)
        cached_tokens = prompt_tokens * 9 // 10 if is_cached else 0
        return Job(job_id, prompt_tokens, demand.output_tokens, demand.work, cached_tokens)


def renumbered(jobs: Sequence[Job], first_id: int) -> list[Job]:
    """Return the jobs with ids from first_id on: several runs on one server must not share any."""
    return [replace(job, job_id=first_id + job.job_id) for job in jobs]


def _faster(server: BatchingParams, speed: float) -> BatchingParams:
    costs = ("step_s", "per_seq_s", "per_prefill_token_s", "per_kv_token_s", "per_seq_squared_s")
    changed: dict[str, Any] = {cost: getattr(server, cost) / speed for cost in costs}
    return replace(server, **changed)
