"""Every operating-system call of the store in a run of 100 items, crashed once; and again during the recovery.

The run is calm and always the same, so call n is the same call each time. Each n is met twice: the process that makes
the call dies; the power fails, and fails again a little later, while the next driver recovers.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulation.simulate import Verdict, simulate
from simulation.weather import Stroke, calm

ITEMS, SEED = 100, 1
AGAIN = 61  # calls until the second power cut: 1 to this many, all of them over the sweep


def count_calls() -> int:
    """Return how many calls the undisturbed run makes."""
    return simulate(calm(items=ITEMS, strokes=()), seed=SEED).calls


def cases(calls: int) -> Iterator[tuple[str, int]]:
    """Yield kind and call of every case."""
    for call in range(1, calls + 1):
        yield from (("kill", call), ("power", call))


def crash(kind: str, call: int, *, mutation: str = "") -> Verdict:
    """Run one case. kind: "kill", the process that makes the call; "power", everything, twice."""
    if kind == "kill":
        strokes: tuple[Stroke, ...] = (Stroke("kill_caller", at_call=call),)
    else:
        again = call + 1 + call * 37 % AGAIN
        strokes = (Stroke("power_cut", at_call=call), Stroke("power_cut", at_call=again))
    weather = calm(items=ITEMS, strokes=strokes)
    return simulate(weather, seed=SEED, name=f"--crash {kind}:{call}", mutation=mutation)
