"""Servers of many kinds with parameters drawn from wide ranges, so that no law can be tuned to one of them.

A kind says what is different; a draw of it (0, 1, ..) says how much. The same kind and draw are the same course always.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalpipe.sim.batching import BatchingParams
from evalpipe.sim.cliff import CliffParams
from evalpipe.sim.course import Course
from evalpipe.sim.profiles import Lengths, Profile, Work

AMPLE_KV = 4_000_000  # tokens: never what binds
SLOTS_JOBS = {1: 100, 4: 250, 8: 400, 64: 2_500, 256: 6_000}


def courses(draws: Sequence[int] = (0, 1), kinds: Sequence[str] | None = None) -> tuple[Course, ...]:
    """Return a course for each kind (None: all of KINDS) and draw."""
    return tuple(draw(kind, number) for kind in kinds or KINDS for number in draws)


def draw(kind: str, number: int) -> Course:
    """Return one course of a kind of KINDS."""
    return KINDS[kind](f"{kind} #{number}", random.Random(f"{kind}/{number}"))


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def a_server(rng: random.Random, *, slots: int, kv_tokens: int = AMPLE_KV, **changes: Any) -> BatchingParams:
    """Draw one: a step of 5 to 30 ms, 10 to 100 microseconds more a sequence, as much a prompt token."""
    drawn: dict[str, Any] = {
        "step_s": log_uniform(rng, 0.005, 0.03),
        "per_seq_s": log_uniform(rng, 1e-5, 1e-4),
        "per_prefill_token_s": log_uniform(rng, 1e-5, 1e-4),
    }
    return BatchingParams(slots=slots, kv_tokens=kv_tokens, **(drawn | changes))


def some_answers(rng: random.Random, low: float = 40, high: float = 400, *, sigma: float | None = None) -> Lengths:
    spread = rng.uniform(0.4, 1.1) if sigma is None else sigma
    return Lengths(median=log_uniform(rng, low, high), sigma=spread, max_output=4_000)


def _slots(slots: int) -> Callable[[str, random.Random], Course]:
    """Enough memory, a queue without end: the limit belongs a little above the slots."""

    def make(name: str, rng: random.Random) -> Course:
        profile = Profile(name, a_server(rng, slots=slots), some_answers(rng))
        median, sigma = log_uniform(rng, 40, 600), rng.uniform(0.2, 1.0)
        return Course(name, profile, SLOTS_JOBS[slots], prompt_median=median, prompt_sigma=sigma)

    return make


def _kv_short(name: str, rng: random.Random) -> Course:
    """Memory for a few dozen short answers: what does not fit is preempted and computed again."""
    server = a_server(rng, slots=512, kv_tokens=int(log_uniform(rng, 12_000, 40_000)))
    median = log_uniform(rng, 50, 200)
    return Course(
        name, Profile(name, server, some_answers(rng, 60, 200)), 2_500, prompt_median=median, prompt_sigma=0.6
    )


def _kv_long(name: str, rng: random.Random) -> Course:
    server = a_server(rng, slots=512, kv_tokens=int(log_uniform(rng, 30_000, 90_000)))
    answers, median = some_answers(rng, 300, 700, sigma=0.8), log_uniform(rng, 100, 1_000)
    return Course(name, Profile(name, server, answers), 1_500, prompt_median=median, prompt_sigma=0.6)


def _prefill(name: str, rng: random.Random) -> Course:
    """Long prompts, answers of a few tokens: few in flight saturate it."""
    server = a_server(rng, slots=256, per_prefill_token_s=log_uniform(rng, 2e-5, 6e-5))
    answers = Lengths(median=log_uniform(rng, 8, 30), sigma=0.4)
    median = log_uniform(rng, 1_500, 3_500)
    return Course(name, Profile(name, server, answers), 800, prompt_median=median, prompt_sigma=0.3)


def _plateau(name: str, rng: random.Random) -> Course:
    """Each sequence costs a hundredth of a step: tokens/s hardly grow beyond 200 in flight."""
    server = a_server(rng, slots=512, step_s=0.008, per_seq_s=log_uniform(rng, 6e-5, 1.5e-4))
    return Course(name, Profile(name, server, some_answers(rng)), 5_000, prompt_median=100)


def _shift(name: str, rng: random.Random) -> Course:
    """Prompts become ten times longer half-way."""
    profile = Profile(name, a_server(rng, slots=rng.choice((48, 96, 160))), some_answers(rng))
    median, shifted = log_uniform(rng, 60, 300), log_uniform(rng, 1_000, 2_500)
    return Course(name, profile, 2_500, prompt_median=median, prompt_sigma=0.5, shifted_median=shifted)


def _heavy(name: str, rng: random.Random) -> Course:
    """Answers of very unequal length."""
    profile = Profile(name, a_server(rng, slots=rng.choice((32, 64, 128, 256))), some_answers(rng, 60, 150, sigma=1.6))
    return Course(name, profile, 3_000, prompt_median=100)


def _replicas(name: str, rng: random.Random) -> Course:
    """Three servers behind one address, one of them slow."""
    profile = Profile(name, a_server(rng, slots=rng.choice((16, 32, 64))), some_answers(rng))
    return Course(name, profile, 3_000, prompt_median=100, speeds=(1.0, 1.0, rng.uniform(0.4, 0.7)))


def _bounded(name: str, rng: random.Random) -> Course:
    """A short queue, then rejections."""
    queue, status = rng.choice((8, 16, 32)), rng.choice((429, 503))
    server = a_server(rng, slots=rng.choice((24, 48, 128)), max_queue=queue, reject_status=status)
    return Course(name, Profile(name, server, some_answers(rng)), 2_500, prompt_median=100)


def _cliff(sigma: float, *, is_shared: bool = False) -> Callable[[str, random.Random], Course]:
    """No queue at all: it serves so many equally fast, a few more at the same total rate, and then collapses."""

    def make(name: str, rng: random.Random) -> Course:
        safe, base_s = round(log_uniform(rng, 12, 150)), log_uniform(rng, 0.2, 2.0)
        server = CliffParams(
            base_s=base_s,
            safe=safe,
            flat_until=round(safe * rng.uniform(1.1, 1.4)),
            collapsed_s=base_s * rng.uniform(3, 9),
            reject_above=round(safe * rng.uniform(1.5, 2)),
            neighbour_mean=0.25 * safe if is_shared else 0.0,
            neighbour_deviation=0.15 * safe,
        )
        jobs = round(safe * 45.0 / base_s)  # 45 seconds at its best
        return Course(name, Profile(name, server, Work(sigma=sigma)), jobs, prompt_median=50, prompt_sigma=0)

    return make


KINDS: Mapping[str, Callable[[str, random.Random], Course]] = {
    **{f"{slots} slots": _slots(slots) for slots in SLOTS_JOBS},
    "KV-bound, short": _kv_short,
    "KV-bound, long": _kv_long,
    "prefill-bound": _prefill,
    "plateau": _plateau,
    "prompt shift": _shift,
    "heavy tail": _heavy,
    "unequal replicas": _replicas,
    "bounded queue": _bounded,
    "cliff, work spread 0": _cliff(0.0),
    "cliff, work spread 0.15": _cliff(0.15),
    "cliff, work spread 0.4": _cliff(0.4),
    "cliff-shared": _cliff(0.15, is_shared=True),
}
