"""Runs in which one guard is needed: what the mutation check looks at."""

from __future__ import annotations

import random
from dataclasses import replace

from simulation.server import ServerSetup
from simulation.weather import Stroke, Weather


def provoke(guard: str, seed: int) -> Weather:
    """Draw a run in which the guard of that name is needed; for the mutation check."""
    rng = random.Random(f"{guard}/{seed}")
    base = Weather(items=32, workers=2, limit=4, yields=0.2, server=ServerSetup(latency_s=0.4), moves=True)
    early, late = rng.uniform(1.0, 4.0), rng.uniform(4.0, 8.0)
    if guard == "fsync":
        return replace(base, strokes=(Stroke("power_cut", at_s=early), Stroke("power_cut", at_s=late + 20.0)))
    if guard == "ttl":
        slow = replace(base, items=24, limit=2, server=ServerSetup(latency_s=3.0))
        return replace(slow, strokes=(Stroke("cut_off_worker", at_s=late + 10.0, seconds=90.0, pick=0.9),))
    if guard == "put_if_absent":  # several start a new run at the same moment
        return replace(base, strokes=tuple(Stroke("second_driver", at_s=rng.uniform(0.0, 0.2)) for _ in range(3)))
    # a driver that stands still while it is taken over: then it commits what it had, and its workers' files come late
    zombie = (Stroke("pause_driver", at_s=early, seconds=8.0), Stroke("takeover", at_s=early + 0.2))
    kills = (Stroke("kill_worker", at_s=early + later, pick=0.99) for later in (4.0, 5.0, 6.0))  # their files are found
    return replace(base, strokes=(*zombie, *kills) if guard == "dedupe" else zombie)
