"""How the cases of cases.py that differ in what is around the server are made.

What happens to it, what lies on the way, who else is there, how large our cluster is, and where a law starts.
"""

from __future__ import annotations

import random
from dataclasses import replace

from evalpipe.sim.batching import BatchingParams
from evalpipe.sim.case_kinds import PROMPT, Make, ordinary
from evalpipe.sim.cliff import CliffParams
from evalpipe.sim.course import Course
from evalpipe.sim.gateway import Delay, Gateway
from evalpipe.sim.manners import Burst
from evalpipe.sim.profiles import Lengths, Profile, Work
from evalpipe.sim.scenario import Guest, Scenario
from evalpipe.sim.trouble import Outage, Paces, Sizes, Trouble
from evalpipe.sim.virtual_run import VirtualSetup
from evalpipe.sim.wide import a_server, log_uniform

AT_S = 60.0  # trouble comes when every law has settled

# --- trouble ---


def _troubled(*troubles: Trouble, seconds: float = 150.0) -> Make:
    def make(name: str, rng: random.Random) -> Scenario:
        return ordinary(name, rng, seconds=seconds, troubles=troubles)

    return make


def outage(seconds: float, *, is_reachable: bool) -> Make:
    """The server is gone for so long, and what it had is lost."""
    return _troubled(Outage(AT_S, seconds, is_reachable=is_reachable))


stall = _troubled(Paces(((AT_S, 0.0), (AT_S + 20.0, 1.0))))
drift = _troubled(Paces(tuple((30.0 * step, 1.0 - 0.06 * step) for step in range(1, 10))), seconds=250.0)
burst = _troubled(Burst(AT_S, 200))
resized = _troubled(Sizes(((AT_S, 0.5), (2 * AT_S, 1.0))))


def timeouts(name: str, rng: random.Random) -> Scenario:
    """The server runs at a twelfth of its pace for 20 s, so that many answers miss their deadline."""
    scenario = ordinary(name, rng, seconds=150.0, troubles=(Paces(((AT_S, 0.08), (AT_S + 20.0, 1.0))),))
    server, answers = scenario.course.profile.server, scenario.course.profile.answers
    assert isinstance(server, BatchingParams) and isinstance(answers, Lengths)
    longest_s = answers.max_output * (server.step_s + server.per_seq_s * server.slots)
    usual_s = 8 * answers.median * longest_s / answers.max_output
    short = replace(answers, max_output=round(6 * answers.median))
    course = replace(scenario.course, profile=replace(scenario.course.profile, answers=short))
    return replace(scenario, course=course, setup=VirtualSetup(deadline_s=max(usual_s, 10.0)))


def resized_cliff(name: str, rng: random.Random) -> Scenario:
    """The same where nothing queues and too many make it collapse."""
    safe, base_s = round(log_uniform(rng, 12, 80)), rng.uniform(1.0, 3.0)
    server = CliffParams(
        base_s=base_s,
        safe=safe,
        flat_until=round(1.2 * safe),
        collapsed_s=base_s * rng.uniform(3, 9),
        reject_above=round(1.8 * safe),
    )
    troubles = (Sizes(((AT_S, 0.5), (2 * AT_S, 1.0))),)
    jobs = round(150.0 * safe / base_s)
    profile = Profile(name, server, Work(sigma=0.15))
    return Scenario(Course(name, profile, jobs, prompt_median=50, prompt_sigma=0, troubles=troubles))


def tenants(name: str, rng: random.Random) -> Scenario:
    """Others hold a third of the slots between 60 s and about 120 s."""
    scenario = ordinary(name, rng, seconds=150.0)
    assert scenario.slots is not None
    limit = scenario.slots // 3
    return replace(scenario, guests=(Guest(limit, max(scenario.course.jobs // 8, 20), AT_S),))


# --- on the way ---


def longer_way(name: str, rng: random.Random) -> Scenario:
    """Every request takes 300 ms more from 120 s on, and nothing is wrong."""
    scenario = ordinary(name, rng, seconds=260.0)
    gateway = Gateway(delays=(Delay(0.02), Delay(0.3, start_s=2 * AT_S)))
    return replace(scenario, setup=VirtualSetup(gateway=gateway))


def delayed(name: str, rng: random.Random) -> Scenario:
    """The network is three times as slow for 30 s, on a server with slots to spare for all its jobs."""
    base_s = rng.uniform(0.05, 0.25)
    gateway = Gateway(delays=(Delay(base_s), Delay(2 * base_s, AT_S, AT_S + 30.0)))
    return replace(ordinary(name, rng, seconds=150.0), setup=VirtualSetup(gateway=gateway))


def noisy_way(name: str, rng: random.Random) -> Scenario:
    """A gateway holds each request for a lognormal time of 0.4 to 3 s, whatever the load."""
    gateway = Gateway(noise_s=rng.uniform(0.8, 1.4), noise_sigma=0.5)
    return replace(ordinary(name, rng, seconds=150.0), setup=VirtualSetup(gateway=gateway))


def buffering(name: str, rng: random.Random) -> Scenario:
    """A proxy delivers each stream in one piece."""
    return replace(ordinary(name, rng, seconds=150.0), setup=VirtualSetup(gateway=Gateway(is_buffering=True)))


def thinking(name: str, rng: random.Random) -> Scenario:
    """Nothing is seen of an answer for its first 30 s, and each takes about a minute."""
    server = a_server(rng, slots=rng.choice((16, 32)), step_s=rng.uniform(0.015, 0.025))
    answers = Lengths(median=rng.uniform(2_000, 3_000), sigma=0.3, max_output=8_000)
    course = Course(name, Profile(name, server, answers), 12 * server.slots, prompt_median=PROMPT)
    return Scenario(course, VirtualSetup(gateway=Gateway(silent_s=30.0)), slots=server.slots)


def sampled(name: str, rng: random.Random) -> Scenario:
    """Only a tenth of the requests is streamed once more than 16 are in flight."""
    return replace(ordinary(name, rng, seconds=150.0), setup=VirtualSetup(is_sampling=True))


# --- neighbours ---


def several(runs: int) -> Make:
    """So many runs of ours at once, each with a controller that knows nothing of the others."""

    def make(name: str, rng: random.Random) -> Scenario:
        scenario = ordinary(name, rng, seconds=200.0)
        jobs = scenario.course.jobs // runs
        return replace(scenario, course=replace(scenario.course, jobs=jobs), runs=runs)

    return make


def greedy_neighbour(name: str, rng: random.Random) -> Scenario:
    """Somebody keeps 256 in flight, whatever comes of it, for longer than we are here."""
    scenario = ordinary(name, rng, seconds=40.0)
    return replace(scenario, guests=(Guest(256, 20 * scenario.course.jobs),))


def small_neighbour(name: str, rng: random.Random) -> Scenario:
    """Somebody has four in flight and wants first tokens as soon as before we came."""
    scenario = ordinary(name, rng, seconds=120.0)
    return replace(scenario, guests=(Guest(4, scenario.course.jobs),))


# --- clusters and starts ---


def cluster(workers: int, *, lag_s: float) -> Make:
    def make(name: str, rng: random.Random) -> Scenario:
        return replace(ordinary(name, rng, seconds=150.0), setup=VirtualSetup(workers=workers, lag_s=lag_s))

    return make


def started(over_best: float) -> Make:
    """The law starts at so many times the best fixed limit, as a store from an earlier run might make it."""

    def make(name: str, rng: random.Random) -> Scenario:
        return replace(ordinary(name, rng, seconds=120.0), start_over_best=over_best)

    return make
