"""Named servers: what a model costs, how long answers are, what stands before it. All of it plain data.

`profile("vllm", slots=32)` replaces one number of one section; a name must therefore be unique within a profile.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from evalpipe.errors import ConfigError
from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.cliff import Cliff, CliffParams
from evalpipe.sim.engine import ServerModel
from evalpipe.sim.quota import Quota, QuotaParams
from evalpipe.sim.replicas import BalancerParams, Replicas


class Demand(NamedTuple):
    """What a request costs the server: output tokens (at least 1) and relative work (mean 1)."""

    output_tokens: int
    work: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """Output tokens are lognormal: median * exp(sigma * normal), at most max_output. Work is 1."""

    median: float = 180.0
    sigma: float = 0.8
    max_output: int = 2_000

    def __post_init__(self) -> None:
        if self.median <= 0 or self.sigma < 0 or self.max_output < 1:
            raise ConfigError(f"median must be > 0, sigma >= 0, max_output >= 1, got {self}")

    def draw(self, rng: random.Random, *, prompt_tokens: int) -> Demand:
        tokens = round(self.median * math.exp(self.sigma * rng.gauss(0, 1)))
        return Demand(min(max(tokens, 1), self.max_output), 1.0)


@dataclass(frozen=True, slots=True)
class Work:
    """Work is lognormal with mean 1; prompt + output tokens = tokens_per_work * work.

    A prompt longer than that leaves min_output tokens: there tokens say too much about the work.
    """

    sigma: float = 0.15
    tokens_per_work: float = 400.0
    min_output: int = 8

    def __post_init__(self) -> None:
        if self.sigma < 0 or self.tokens_per_work <= 0 or self.min_output < 1:
            raise ConfigError(f"sigma must be >= 0, tokens_per_work > 0, min_output >= 1, got {self}")

    def draw(self, rng: random.Random, *, prompt_tokens: int) -> Demand:
        work = math.exp(self.sigma * rng.gauss(0, 1) - self.sigma**2 / 2)
        return Demand(max(round(self.tokens_per_work * work) - prompt_tokens, self.min_output), work)


@dataclass(frozen=True, slots=True)
class Profile:
    """A simulated server, frozen and picklable.

    overhead_s: a request's time before the model sees it (tokenising, network); both faces add it. chunk_s: the HTTP
    face gathers a stream's tokens for so long after the first one.
    """

    name: str
    server: BatchingParams | CliffParams
    answers: Lengths | Work = field(default_factory=Lengths)
    quota: QuotaParams = field(default_factory=QuotaParams)
    balancer: BalancerParams = field(default_factory=BalancerParams)
    overhead_s: float = 0.0
    chunk_s: float = 0.05

    def __post_init__(self) -> None:
        if self.overhead_s < 0 or self.chunk_s < 0.001:
            raise ConfigError(
                f"overhead_s must be >= 0 and chunk_s >= 0.001, got {self.overhead_s:g} and {self.chunk_s:g}"
            )

    def build(self, seed: int = 0) -> ServerModel:
        """Return a fresh model, idle. seed: of its own randomness (the neighbour of `cliff-shared`)."""
        models = [self._build_one(seed + i) for i in range(self.balancer.replicas)]
        model = models[0] if len(models) == 1 else Replicas(models, route=self.balancer.route)
        return model if self.quota.rpm is None and self.quota.tpm is None else Quota(model, self.quota)

    def _build_one(self, seed: int) -> ServerModel:
        if isinstance(self.server, CliffParams):
            return Cliff(self.server, seed=seed)
        return Batching(self.server)


def _cv(mean: float, cv: float) -> Lengths:
    """Return lognormal lengths of a given mean and coefficient of variation."""
    sigma = math.sqrt(math.log1p(cv * cv))
    return Lengths(median=mean / math.exp(sigma * sigma / 2), sigma=sigma)


# `table`, `smooth` and `fp16`: the fits of notes/loadtest.md 3.2, for prompts of 512 tokens. Memory, swap and queue of
# `table` are fitted anew: here decoding goes before prefill, so the same memory collapses earlier and preempts twice as
# often. With these the minute at 35/s has the published throughput, TTFT P99, TPOT P99 and preemption (load_table.py).
_TABLE = BatchingParams(
    slots=1024,
    step_s=4.32e-3,
    per_prefill_token_s=18e-6,
    per_seq_s=128e-6,
    per_seq_squared_s=0.33e-6,
    kv_tokens=105_000,
    chunk=160,
    max_num_batched_tokens=2_048,
    swap_per_token_s=600e-6,
    max_queue=70,
)
_FP16 = BatchingParams(
    slots=1024,
    step_s=12e-3,
    per_prefill_token_s=37e-6,
    per_seq_s=20e-6,
    per_kv_token_s=20e-9,
    kv_tokens=1_300_000,
    chunk=8_192,
    max_num_batched_tokens=8_192,
    watermark=0.01,
    max_queue=1_000,
)
_SMOOTH = replace(_TABLE, kv_tokens=10_000_000, chunk=512, swap_per_token_s=0.0, max_queue=None)
_VLLM = BatchingParams()
_SHARED = CliffParams(neighbour_mean=12.0)
# Answers after a microsecond, however many ask: what is left is the client's own cost.
_INSTANT = CliffParams(base_s=1e-6, safe=10**9, flat_until=10**9, reject_above=10**9)

PROFILES = {
    known.name: known
    for known in (
        Profile("vllm", _VLLM),
        Profile("cliff", CliffParams(), Work()),
        Profile("cliff-shared", _SHARED, Work()),
        Profile("table", _TABLE, _cv(128, 0.3), overhead_s=0.010),
        Profile("fp16", _FP16, _cv(128, 0.3), overhead_s=0.015),
        Profile("smooth", _SMOOTH, _cv(128, 0.3), overhead_s=0.010),
        Profile("quota-rpm", _VLLM, quota=QuotaParams(rpm=300)),
        Profile("quota-tpm", _VLLM, quota=QuotaParams(tpm=200_000)),
        Profile("replicas", _VLLM, balancer=BalancerParams(replicas=4)),
        Profile("instant", _INSTANT, Lengths(median=8, sigma=0.0)),
    )
}
_SECTIONS = ("server", "answers", "quota", "balancer")
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "int | None": (int, type(None)),
}


def profile(name: str, /, **overrides: Any) -> Profile:
    """Return the profile of that name, some of its numbers replaced. Raises ConfigError naming the nearest right one.

    overrides: fields of BatchingParams or CliffParams, Lengths or Work, QuotaParams and BalancerParams, and
    overhead_s, chunk_s.
    """
    if name not in PROFILES:
        raise ConfigError(f"unknown profile {name!r}; {did_you_mean(name, PROFILES)}")
    chosen = PROFILES[name]
    for option, value in overrides.items():
        chosen = _replace(chosen, option, value)
    return chosen


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return the hint that ends a message about an unknown name."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def _replace(chosen: Profile, option: str, value: Any) -> Profile:
    sections = [chosen, *(getattr(chosen, section) for section in _SECTIONS)]
    types = {f.name: str(f.type) for section in sections for f in fields(section) if str(f.type) in _TYPES}
    if option not in types or option == "name":
        raise ConfigError(f"profile {chosen.name}: unknown option {option!r}; {did_you_mean(option, types)}")
    if isinstance(value, bool) or not isinstance(value, _TYPES[types[option]]):
        raise ConfigError(f"profile {chosen.name}: {option} must be of type {types[option]}, got {value!r}")
    change: dict[str, Any] = {option: value}
    if hasattr(chosen, option):
        return replace(chosen, **change)
    section = next(s for s in _SECTIONS if hasattr(getattr(chosen, s), option))
    changed: dict[str, Any] = {section: replace(getattr(chosen, section), **change)}
    return replace(chosen, **changed)
