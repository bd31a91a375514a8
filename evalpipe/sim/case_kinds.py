"""How the cases of cases.py that differ in their server are made: batching of other shapes, and quotas.

Each is a function of a name and a random generator, with numbers from wide ranges. Jobs are as many as the server can
do in about the time that the case needs, by a rough sum of what a step costs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

from evalpipe.control.quota import Quota
from evalpipe.sim.batching import BatchingParams
from evalpipe.sim.course import Course, LongPrompts
from evalpipe.sim.manners import Advice, LateNo
from evalpipe.sim.profiles import Lengths, Profile
from evalpipe.sim.quota import QuotaParams
from evalpipe.sim.replicas import BalancerParams
from evalpipe.sim.scenario import Scenario
from evalpipe.sim.trouble import Trouble
from evalpipe.sim.virtual_run import VirtualSetup
from evalpipe.sim.wide import KINDS, a_server, log_uniform, some_answers

Make = Callable[[str, random.Random], Scenario]

FEW, MOST = 100, 12_000  # jobs of a case
PROMPT, SIGMA = 100.0, 0.9
BOUND_BY_SLOTS = frozenset({"1 slots", "4 slots", "8 slots", "64 slots", "256 slots", "heavy tail", "bounded queue"})


def slots_of(kind: str, course: Course) -> int | None:
    """Return the slots of a course of wide.KINDS where they are what binds."""
    server = course.profile.server
    return server.slots if kind in BOUND_BY_SLOTS and isinstance(server, BatchingParams) else None


def _rate(server: BatchingParams, answers: Lengths) -> float:
    """Return about how many requests a second a full server answers."""
    tokens = min(answers.median * math.exp(answers.sigma**2 / 2), answers.max_output)
    prompt = PROMPT * math.exp(SIGMA**2 / 2)
    step_s = server.step_s + server.per_seq_s * server.slots
    return 1.0 / (tokens * step_s / server.slots + prompt * server.per_prefill_token_s)


def ordinary(name: str, rng: random.Random, *, seconds: float, troubles: tuple[Trouble, ...] = ()) -> Scenario:
    """A batching server of 16 to 64 slots that is busy for about so long."""
    server = a_server(rng, slots=rng.choice((16, 32, 64)))
    answers = some_answers(rng, 100, 400, sigma=rng.uniform(0.4, 0.9))
    jobs = min(max(round(_rate(server, answers) * seconds), FEW), MOST)
    course = Course(name, Profile(name, server, answers), jobs, prompt_median=PROMPT, troubles=troubles)
    return Scenario(course, slots=server.slots)


# --- batching ---


def blind_balancer(name: str, rng: random.Random) -> Scenario:
    """Four equal replicas, each sent every fourth request whatever it has to do."""
    server = a_server(rng, slots=rng.choice((16, 32, 64)))
    profile = Profile(name, server, some_answers(rng), balancer=BalancerParams(replicas=4))
    return Scenario(Course(name, profile, 5_000, prompt_median=PROMPT), slots=4 * server.slots)


def hard_cap(name: str, rng: random.Random) -> Scenario:
    """No queue at all: one request more than the slots is a 429."""
    server = a_server(rng, slots=round(log_uniform(rng, 12, 100)), max_queue=0)
    return Scenario(Course(name, Profile(name, server, some_answers(rng)), 2_000, prompt_median=PROMPT))


def late_no(name: str, rng: random.Random) -> Scenario:
    """A bounded queue that says no inside a stream which began with 200."""
    course = KINDS["bounded queue"](name, rng)
    return Scenario(
        replace(course, troubles=(LateNo(rng.uniform(0.005, 0.1)),)), slots=slots_of("bounded queue", course)
    )


def few_items(jobs: int) -> Make:
    """So few that the ramp is most of the run."""

    def make(name: str, rng: random.Random) -> Scenario:
        scenario = ordinary(name, rng, seconds=1.0)
        return replace(scenario, course=replace(scenario.course, jobs=jobs))

    return make


def many_items(name: str, rng: random.Random) -> Scenario:
    """A fleet of 1,024 slots."""
    server = a_server(rng, slots=1_024, max_num_batched_tokens=8_192, per_seq_s=log_uniform(rng, 5e-6, 2e-5))
    course = Course(name, Profile(name, server, some_answers(rng, 60, 300)), 30_000, prompt_median=PROMPT)
    return Scenario(course, slots=server.slots, max_limit=1_500)


def mixed_prompts(name: str, rng: random.Random) -> Scenario:
    """Prompts of ten words, and a changing share of 32k tokens among them."""
    server = a_server(rng, slots=rng.choice((32, 64)), per_prefill_token_s=log_uniform(rng, 1e-5, 4e-5))
    shares = tuple(rng.choice((0.0, 0.02, 0.1, 0.3)) for _ in range(5))
    profile = Profile(name, server, some_answers(rng, 60, 300))
    course = Course(
        name, profile, 1_200, prompt_median=15.0, prompt_sigma=0.2, long_prompts=LongPrompts(32_000, shares)
    )
    return Scenario(course)


def mixed_answers(name: str, rng: random.Random) -> Scenario:
    """Answers of a few tokens and of thousands: slots empty all the time."""
    server = a_server(rng, slots=rng.choice((16, 32, 64)))
    answers = Lengths(median=log_uniform(rng, 30, 60), sigma=rng.uniform(1.4, 1.8), max_output=3_000)
    return Scenario(Course(name, Profile(name, server, answers), 3_000, prompt_median=PROMPT), slots=server.slots)


def prefix_cache(name: str, rng: random.Random) -> Scenario:
    """Half of the long prompts are cached but for a tenth, so first tokens come at two speeds."""
    server = a_server(rng, slots=rng.choice((32, 64)), per_prefill_token_s=log_uniform(rng, 2e-5, 6e-5))
    profile = Profile(name, server, some_answers(rng, 100, 400))
    median = log_uniform(rng, 800, 2_000)
    return Scenario(Course(name, profile, 2_000, prompt_median=median, prompt_sigma=0.3, cached_share=0.5))


# --- quotas ---


def rpm(rng: random.Random) -> dict[str, int]:
    return {"rpm": round(log_uniform(rng, 200, 900))}


def slow_rpm(rng: random.Random) -> dict[str, int]:
    return {"rpm": round(rng.uniform(180, 260))}


def tpm(rng: random.Random) -> dict[str, int]:
    return {"tpm": round(log_uniform(rng, 60_000, 250_000))}


AS_IT_IS = -1.0  # the Retry-After is the truth


def quota(
    rate: Callable[[random.Random], dict[str, int]], *, window: str = "bucket", advice_s: float | None = AS_IT_IS
) -> Make:
    """1,500 requests against a server that could answer many times what its quota allows."""

    def make(name: str, rng: random.Random) -> Scenario:
        server = a_server(rng, slots=128, step_s=0.008, per_seq_s=2e-5, per_prefill_token_s=4e-5)
        params = QuotaParams(**rate(rng), window=window)
        profile = Profile(name, server, some_answers(rng, 40, 120, sigma=0.6), quota=params)
        troubles = () if advice_s == AS_IT_IS else (Advice(advice_s),)
        return Scenario(Course(name, profile, 1_500, prompt_median=PROMPT, prompt_sigma=0.5, troubles=troubles))

    return make


def declared_quota(name: str, rng: random.Random) -> Scenario:
    """The user says what the quota is, so that nothing need be refused."""
    scenario = quota(rpm)(name, rng)
    per_minute = scenario.course.profile.quota.rpm
    return replace(scenario, setup=VirtualSetup(quota=Quota(rpm=per_minute)))
