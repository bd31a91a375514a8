"""How well `loadtest capacity` finds a knee that is known: bias, spread and coverage over seeds, in virtual time.

    python benchmarks/knee.py [--seeds 16] [--profiles smooth table]
    python benchmarks/knee.py --truth [--seeds 24]

The truth is the rate at which half of all ten-minute tests meet the SLO (TTFT P99 <= 200 ms); --truth prints the share
that does by rate. Then each recommendation is held for ten minutes, --trials times: it must never collapse.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import mean, stdev

from evalpipe.loadtest.capacity import Capacity, Plan, capacity
from evalpipe.loadtest.probe import Probe
from evalpipe.loadtest.search import carry_out
from evalpipe.loadtest.slo import Slo
from evalpipe.sim.bench import VirtualBench
from evalpipe.sim.profiles import profile

TRUTH = {"smooth": 27.5, "table": 27.0}
RATES = {"smooth": (27.0, 27.25, 27.5, 27.75), "table": (26.0, 26.5, 27.0, 27.5)}
LONG_S, SETTLE_S = 600.0, 45.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--profiles", nargs="+", default=["smooth", "table"])
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    for name in given.profiles:
        if given.truth:
            print_truth(name, given.seeds)
        else:
            print_accuracy(name, given.seeds, given.trials)


def print_truth(name: str, seeds: int) -> None:
    for rate in RATES[name]:
        good = sum(is_good(name, rate, seed=200 + seed) for seed in range(seeds))
        print(f"{name} {rate:6.2f} req/s: {good} of {seeds} ten-minute tests meet the SLO", flush=True)


def is_good(name: str, rate: float, *, seed: int) -> bool:
    point = VirtualBench(profile(name)).run(Probe("open", rate, SETTLE_S, LONG_S, seed=seed))
    return point.measures.bad_share <= Slo().allowed


def print_accuracy(name: str, seeds: int, trials: int) -> None:
    truth, found = TRUTH[name], []
    for seed in range(1, seeds + 1):
        bench = VirtualBench(profile(name))
        found.append(carry_out(capacity(Plan(Slo(), seed=seed)), bench.run))
        print(f"{name} seed {seed:2d}: {describe(found[-1])}; {bench.seconds / 60:.0f} virtual minutes", flush=True)
    rates = [each.knee.slo.rate for each in found]
    covered = sum(each.knee.slo.low <= truth <= each.knee.slo.high for each in found)
    print(
        f"{name}: truth {truth}, mean {mean(rates):.2f}, bias {100 * (mean(rates) / truth - 1):+.1f} %,"
        f" sd {100 * stdev(rates) / truth:.1f} %, 90 % interval covers {covered} of {seeds}"
    )
    print(f"{name}: {hold(name, found, trials)} of {trials} trials of ten minutes at a recommendation stayed good")


def describe(found: Capacity) -> str:
    knee = found.knee.slo
    return (
        f"knee {knee.rate:.2f} [{knee.low:.2f}, {knee.high:.2f}] {found.knee.kind},"
        f" recommended {found.rate:.1f} req/s, {found.in_flight} in flight, confirmed {found.is_confirmed}"
    )


def hold(name: str, found: Sequence[Capacity], trials: int) -> int:
    return sum(is_good(name, found[trial % len(found)].rate, seed=900 + trial) for trial in range(trials))


if __name__ == "__main__":
    main()
