"""Run the simulation: many seeds, the sweep over every os call, or one case with its trace.

python tests/simulation/run.py --seeds 2000 --sweep --jobs 2
python tests/simulation/run.py --seed 17 --trace
python tests/simulation/run.py --crash power:120
python tests/simulation/run.py --seeds 200 --mutation fsync
"""
# ruff: noqa: T201 - a command

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation import sweep
from simulation.mutations import NAMES
from simulation.simulate import Verdict, simulate_seed

AT_LEAST = 100  # times that each kind of event must be met over 2,000 seeds
WHOLE = 2000


def main() -> int:
    options = _parser().parse_args()
    if options.seed is not None:
        return _show(simulate_seed(options.seed, mutation=options.mutation, trace=print if options.trace else None))
    if options.crash is not None:
        kind, _, call = options.crash.partition(":")
        return _show(sweep.crash(kind, int(call), mutation=options.mutation))
    began = time.perf_counter()
    verdicts = list(_report(_verdicts(options)))
    _print_table(verdicts, seconds=time.perf_counter() - began)
    return _print_rare(verdicts, options) or int(any(verdict.violations for verdict in verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--sweep", action="store_true", help="crash at every os call of a run of 100 items")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--mutation", choices=("", *NAMES), default="", help="take one guard away")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--crash", help="one case of the sweep, kill:N or power:N")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    return parser


def _verdicts(options: argparse.Namespace) -> Iterator[Verdict]:
    seeds = range(options.first, options.first + options.seeds)
    cases = list(sweep.cases(sweep.count_calls())) if options.sweep else []
    if options.jobs == 1:
        yield from map(partial(simulate_seed, mutation=options.mutation), seeds)
        yield from (sweep.crash(*case, mutation=options.mutation) for case in cases)
        return
    # a process for each core, started anew: Ray has threads, and a fork would take their locks along
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(simulate_seed, mutation=options.mutation), seeds, chunksize=10)
        yield from pool.map(partial(_crash, mutation=options.mutation), cases, chunksize=10)


def _crash(case: tuple[str, int], *, mutation: str) -> Verdict:
    return sweep.crash(*case, mutation=mutation)


def _report(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    for verdict in verdicts:
        for violation in verdict.violations:
            print(f"VIOLATION {verdict.name}: {violation}")
        if verdict.violations:
            print(f"  again: python tests/simulation/run.py {verdict.name} --trace", flush=True)
        yield verdict


def _show(verdict: Verdict) -> int:
    print(f"{verdict.name}: {verdict.virtual_s:.1f} s, {verdict.calls} os calls, {verdict.paid} paid, {verdict.digest}")
    for violation in verdict.violations:
        print(f"VIOLATION {violation}")
    return int(bool(verdict.violations))


def _print_table(verdicts: list[Verdict], *, seconds: float) -> None:
    total = _totals(verdicts)
    print(f"\n{'event':<18} {'times':>8}   {'seen in':>8}")
    for name, times in sorted(total.items(), key=lambda item: -item[1]):
        seen = sum(name in verdict.counts for verdict in verdicts)
        print(f"{name:<18} {times:>8}   {seen:>8}")
    rows: list[tuple[str, Callable[[Verdict], float]]] = [
        ("os calls", lambda v: v.calls),
        ("requests paid", lambda v: v.paid),
        ("virtual seconds", lambda v: v.virtual_s),
        ("CPU seconds", lambda v: v.cpu_s),
    ]
    print(f"\n{len(verdicts)} runs in {seconds:.0f} s")
    for name, value in rows:
        values = [value(verdict) for verdict in verdicts]
        print(f"{name:<18} {sum(values):>10.0f}   {sum(values) / len(values):>10.2f} a run, at most {max(values):.1f}")
    broken = [verdict for verdict in verdicts if verdict.violations]
    print(f"{'violations':<18} {sum(len(v.violations) for v in broken):>10}   in {len(broken)} runs")


def _print_rare(verdicts: list[Verdict], options: argparse.Namespace) -> int:
    """Say which events were met too rarely to be called tested; judged over the whole number of seeds only."""
    if options.seeds < WHOLE or options.mutation:
        return 0
    rare = {name: times for name, times in _totals(verdicts).items() if times < AT_LEAST}
    for name, times in rare.items():
        print(f"TOO RARE {name}: {times} times, {AT_LEAST} are asked for")
    return int(bool(rare))


def _totals(verdicts: list[Verdict]) -> Counter[str]:
    total: Counter[str] = Counter()
    for verdict in verdicts:
        total.update(verdict.counts)
    return total


if __name__ == "__main__":
    sys.exit(main())
