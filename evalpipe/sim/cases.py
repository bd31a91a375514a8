"""The suite's cases: what a law is judged on, by kind of server and kind of trouble. All numbers are drawn per seed.

A case makes a Scenario from a seed; evalpipe/sim/bounds.py says what is asked of a law there. The kinds of wide.py are
cases as they are; here are the rest: quotas, troubles, what lies on the way, neighbours, clusters, starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from evalpipe.sim import case_kinds as kinds
from evalpipe.sim import case_weather as weather
from evalpipe.sim import wide
from evalpipe.sim.scenario import Scenario

Kind = Literal["batching", "sharing", "quota", "trouble", "path", "neighbours", "cluster", "start"]
Make = Callable[[str, random.Random], Scenario]


@dataclass(frozen=True, slots=True)
class Case:
    """kind: of server or trouble. is_stationary: nothing changes while it runs, so a law has no excuse.

    is_raced: the best fixed limit is a fair measure; beside others it is not, for it takes all.
    """

    name: str
    kind: Kind
    make: Make
    is_stationary: bool = False
    is_raced: bool = True

    def draw(self, seed: int) -> Scenario:
        """Return the scenario of a seed, always the same."""
        return self.make(f"{self.name} #{seed}", random.Random(f"{self.name}/{seed}"))


def _of_wide(kind: str) -> Make:
    def make(name: str, rng: random.Random) -> Scenario:
        course = wide.KINDS[kind](name, rng)
        return Scenario(course, slots=kinds.slots_of(kind, course))

    return make


#: The rest of the cases by kind and name.
MADE: Mapping[Kind, Mapping[str, Make]] = {
    "batching": {
        "blind balancer": kinds.blind_balancer,
        "hard cap": kinds.hard_cap,
        "no inside a stream": kinds.late_no,
        "100 items": kinds.few_items(100),
        "300 items": kinds.few_items(300),
        "30,000 items": kinds.many_items,
        "ten words and 32k tokens": kinds.mixed_prompts,
        "short and long answers": kinds.mixed_answers,
        "prefix cache": kinds.prefix_cache,
    },
    "quota": {
        "rpm, bucket": kinds.quota(kinds.rpm),
        "rpm, window": kinds.quota(kinds.rpm, window="fixed"),
        "tpm, bucket": kinds.quota(kinds.tpm),
        "Retry-After 89 s": kinds.quota(kinds.slow_rpm, advice_s=89.0),
        "Retry-After 3,600 s": kinds.quota(kinds.rpm, advice_s=300.0),
        "Retry-After 0": kinds.quota(kinds.rpm, advice_s=0.0),
        "no Retry-After": kinds.quota(kinds.rpm, advice_s=None),
        "rpm, declared": kinds.declared_quota,
    },
    "trouble": {
        "outage, 503": weather.outage(30.0, is_reachable=True),
        "outage, no connection": weather.outage(30.0, is_reachable=False),
        "restart": weather.outage(8.0, is_reachable=False),
        "stall": weather.stall,
        "timeouts": weather.timeouts,
        "halved and doubled": weather.resized,
        "cliff, halved and doubled": weather.resized_cliff,
        "drift": weather.drift,
        "200 times 429": weather.burst,
        "tenants": weather.tenants,
    },
    "path": {
        "300 ms more for good": weather.longer_way,
        "delay x 3": weather.delayed,
        "gateway noise": weather.noisy_way,
        "buffering proxy": weather.buffering,
        "thinks for 30 s": weather.thinking,
        "a tenth streamed": weather.sampled,
    },
    "neighbours": {
        "two runs": weather.several(2),
        "four runs": weather.several(4),
        "beside fixed 256": weather.greedy_neighbour,
        "beside a small one": weather.small_neighbour,
    },
    "cluster": {
        "64 workers, lag 0.25 s": weather.cluster(64, lag_s=0.25),
        "256 workers": weather.cluster(256, lag_s=0.0),
        "lag 1 s": weather.cluster(8, lag_s=1.0),
        "lag 2 s": weather.cluster(8, lag_s=2.0),
    },
    "start": {
        "warm and right": weather.started(1.0),
        "10 x too high": weather.started(10.0),
        "10 x too low": weather.started(0.1),
    },
}
#: There the best fixed limit is no measure: it is the rudest one, or lives on a burst that nobody declares.
UNRACED = {"rpm, declared", "tenants", "two runs", "four runs", "beside fixed 256", "beside a small one"}
#: Something changes, or the jobs are so few that the ramp is most of the run, or several servers hide behind one.
UNSTEADY = {
    *("prompt shift", "ten words and 32k tokens", "100 items", "300 items", "unequal replicas", "blind balancer"),
}


def _case(name: str, kind: Kind, make: Make) -> Case:
    is_stationary = kind in ("batching", "sharing") and name not in UNSTEADY
    return Case(name, kind, make, is_stationary=is_stationary, is_raced=name not in UNRACED)


def _every() -> tuple[Case, ...]:
    cases = [_case(name, "sharing" if name.startswith("cliff") else "batching", _of_wide(name)) for name in wide.KINDS]
    cases += [_case(name, kind, make) for kind, made in MADE.items() for name, make in made.items()]
    return tuple(sorted(cases, key=lambda case: get_args(Kind).index(case.kind)))


CASES = _every()
#: A few seconds of them, for each kind of server and of trouble; the rest is for the full suite.
QUICK = (
    "1 slots",
    "8 slots",
    "64 slots",
    "KV-bound, short",
    "bounded queue",
    "cliff, work spread 0.15",
    "cliff-shared",
    "300 items",
    "rpm, bucket",
    "outage, 503",
    "halved and doubled",
    "gateway noise",
    "two runs",
    "64 workers, lag 0.25 s",
)
