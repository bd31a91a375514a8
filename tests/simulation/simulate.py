"""One simulation from weather to verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from simulation.checker import Checker
from simulation.mutations import Mutation
from simulation.weather import Weather, draw
from simulation.world import World


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one simulation. name: how to do it again. counts: how often each kind of event was met.

    digest: identity of everything that happened. calls: os calls until the run was complete. virtual_s, cpu_s: how long
    it was, and how long it took.
    """

    name: str
    violations: tuple[str, ...]
    counts: dict[str, int]
    digest: str
    calls: int
    paid: int
    virtual_s: float
    cpu_s: float


def simulate(
    weather: Weather,
    *,
    seed: int,
    name: str = "",
    mutation: str = "",
    trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Run one world to its end and judge it."""
    began = time.process_time()
    world = World(weather, seed=seed, mutation=Mutation(mutation), trace=trace)
    checker = Checker(world)
    try:
        is_ended = world.run()
        violations = checker.conclude(is_ended=is_ended)
    finally:
        world.finish()
    return Verdict(
        name=name or f"--seed {seed}",
        violations=tuple(violations),
        counts=dict(world.counts),
        digest=world.scheduler.digest,
        calls=world.calls_of_run,
        paid=sum(visit.had_token for visit in world.server.visits),
        virtual_s=world.scheduler.now,
        cpu_s=time.process_time() - began,
    )


def simulate_seed(seed: int, *, mutation: str = "", trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world that a seed stands for."""
    return simulate(draw(seed), seed=seed, mutation=mutation, trace=trace)
