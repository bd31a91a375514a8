"""What is raced: courses (a server and the jobs it is given), contenders (a law with its options) and suites of both.

Data only; evalpipe/sim/race.py runs it. A new suite is a new entry of SUITES.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalpipe.control.build import RECIPES, build_law
from evalpipe.control.law import Law
from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Job, ServerModel
from evalpipe.sim.profiles import Profile, did_you_mean, profile

MAX_PROMPT = 4_000


@dataclass(frozen=True, slots=True)
class Course:
    """A server and how many jobs of what kind it is given.

    Prompt tokens are lognormal, median prompt_median, at most MAX_PROMPT; output and work are the profile's.
    """

    name: str
    profile: Profile
    jobs: int
    prompt_median: float = 75.0
    prompt_sigma: float = 0.9

    def draw(self, seed: int) -> list[Job]:
        """Return the jobs, ids from 0; the same for the same seed, the first n of more jobs included."""
        rng = random.Random(f"jobs/{seed}")
        return [self._job(job_id, rng) for job_id in range(self.jobs)]

    def server(self, seed: int) -> ServerModel:
        """Return an idle server; another tenant's load follows from the seed."""
        return self.profile.build(seed)

    def _job(self, job_id: int, rng: random.Random) -> Job:
        prompt = self.prompt_median * math.exp(self.prompt_sigma * rng.gauss(0, 1))
        prompt_tokens = min(max(round(prompt), 1), MAX_PROMPT)
        demand = self.profile.answers.draw(rng, prompt_tokens=prompt_tokens)
        return Job(job_id, prompt_tokens, demand.output_tokens, demand.work)


@dataclass(frozen=True, slots=True)
class Contender:
    """A law by name, its options (start among them) and what the table calls it."""

    label: str
    law: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Law:
        return build_law(self.law, **self.options)


@dataclass(frozen=True, slots=True)
class Suite:
    """max_limit: the largest fixed limit worth trying; the default is the upper bound of the published law."""

    name: str
    courses: tuple[Course, ...]
    contenders: tuple[Contender, ...]
    max_limit: int = 128


def fixed(limit: int) -> Contender:
    return Contender(f"fixed {limit}", "fixed", {"start": limit})


def _cliff(name: str, sigma: float) -> Course:
    """Short prompts of one length, so that prompt + output tokens are 400 a unit of work for every job."""
    return Course(f"{name}, work spread {sigma:g}", profile(name, sigma=sigma), 2_000, prompt_median=50, prompt_sigma=0)


_PLAIN = Contender("gradient-published", "gradient-published")
_NORMALISED = Contender("gradient-published, normalise: total", "gradient-published", {"normalise": "total"})
_CONTENDERS = (
    fixed(64),
    Contender("aimd-published", "aimd-published"),
    Contender("bbr-published", "bbr-published"),
    _PLAIN,
    _NORMALISED,
    Contender("gradient", "gradient"),
)
_EVERY_LAW = (fixed(64), *(Contender(name, name) for name in RECIPES if name != "fixed"), _NORMALISED)

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        # the published experiment: 2,000 tasks, constant and spread work
        Suite(
            "published",
            (
                _cliff("cliff", 0.0),
                _cliff("cliff", 0.15),
                _cliff("cliff", 0.4),
                _cliff("cliff-shared", 0.0),
                _cliff("cliff-shared", 0.15),
            ),
            _CONTENDERS,
        ),
        # every law on the default server, with prompts as long as those of datasets/logic-5k.parquet
        Suite("laws", (Course("vllm", profile("vllm"), 5_000),), _EVERY_LAW),
        # servers of other kinds than the published one
        Suite(
            "servers",
            (
                Course("vllm, 64 slots", profile("vllm"), 5_000),
                Course("vllm, 256 slots", profile("vllm", slots=256), 5_000),
                Course("vllm, KV-bound", profile("vllm", slots=256, kv_tokens=20_000), 3_000, prompt_median=300),
                Course("vllm, 8 slots", profile("vllm", slots=8), 1_000),
                Course("table", profile("table"), 3_000, prompt_median=512, prompt_sigma=0),
                Course("smooth", profile("smooth"), 3_000, prompt_median=512, prompt_sigma=0),
                Course("replicas", profile("replicas"), 5_000),
            ),
            (fixed(16), fixed(64), fixed(128), Contender("aimd", "aimd"), Contender("gradient", "gradient")),
            max_limit=512,
        ),
    )
}


def suite(name: str) -> Suite:
    """Return the suite of that name. Raises ConfigError naming the nearest right one."""
    if name not in SUITES:
        raise ConfigError(f"unknown suite {name!r}; {did_you_mean(name, SUITES)}")
    return SUITES[name]
