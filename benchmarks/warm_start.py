"""What a warm start is worth, and what a wrong one costs, on every kind of server of the wide suite, in virtual time.

    python benchmarks/warm_start.py [--law gradient progress] [--draw 0]

Each course is run cold, which tells where it settles, then begun from that level, from ten times it and from a tenth.
Makespans are ratios to the cold run's; rejections and the median time to the first token are beside them.
"""

from __future__ import annotations

import argparse
import math
import statistics

import numpy as np

from evalpipe.control.build import RECIPES, build_law
from evalpipe.control.law import Law
from evalpipe.control.warm import Settled, Settling, WarmStart
from evalpipe.sim import wide
from evalpipe.sim.course import Course
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

FACTORS = (1.0, 10.0, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--law", nargs="+", default=["gradient", "progress"])
    parser.add_argument("--draw", type=int, default=0)
    options = parser.parse_args()
    for law in options.law:
        race(law, wide.courses((options.draw,)))


def race(law: str, courses: tuple[Course, ...]) -> None:
    ratios: dict[float, list[float]] = {factor: [] for factor in FACTORS}
    print(f"{law:<28}{'cold':>9}{'level':>8}" + "".join(f"{f'level x {factor:g}':>28}" for factor in FACTORS))
    for course in courses:
        cold = heat(course, build_law(law))
        level = settled(cold)
        if level is None:
            print(f"{course.name:<28}{cold.makespan_s:>8.1f}s   settled nowhere")
            continue
        cells = []
        for factor in FACTORS:
            most = min(level * factor, RECIPES[law].max_limit)
            warm = heat(course, WarmStart(build_law(law), Settled(most)))
            ratios[factor].append(warm.makespan_s / cold.makespan_s)
            cells.append(f"{ratios[factor][-1]:.3f} {warm.rejections - cold.rejections:+d} rej {ttft_s(warm):6.2f} s")
        line = "".join(cell.rjust(28) for cell in cells)
        print(f"{course.name:<28}{cold.makespan_s:>8.1f}s{level:>8.0f}{line}", flush=True)
    for factor, found in ratios.items():
        print(f"level x {factor:g}: mean {statistics.mean(found):.3f}, worst {max(found):.3f}")


def heat(course: Course, law: Law) -> VirtualRun:
    setup = VirtualSetup(overhead_s=course.profile.overhead_s)
    return run_virtual(law, course.server(0), course.draw(0), setup=setup)


def settled(run: VirtualRun) -> float | None:
    settling = Settling()
    for tick in run.ticks:
        settling.add(limit=tick.limit, in_flight=tick.in_flight, stuck=tick.overdue + tick.stalled)
    return settling.level


def ttft_s(run: VirtualRun) -> float:
    return float(np.median(run.ttft_s)) if len(run.ttft_s) else math.nan


if __name__ == "__main__":
    main()
