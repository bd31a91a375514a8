"""The deterministic crash simulation: sixteen seeds by default, all of them and every os call under the mark chaos."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.mutations import NAMES
from simulation.provoke import provoke
from simulation.simulate import simulate, simulate_seed

RUN = Path(__file__).with_name("run.py")
SEEDS = 8
WITHIN = 10  # seeds until a missing guard must have shown


@pytest.mark.timeout(300)
def test_no_seed_breaks_an_invariant():
    """Crashes, power cuts, pauses, cut links and full disks leave every item done once, as the server answered it."""
    verdicts = [simulate_seed(seed) for seed in range(SEEDS)]

    assert [(v.name, v.violations) for v in verdicts if v.violations] == []
    assert sum(v.counts.get("kill_driver", 0) + v.counts.get("power_cut", 0) for v in verdicts) >= 5


@pytest.mark.parametrize("guard", NAMES)
def test_a_missing_guard_is_noticed(guard: str):
    """With the guard the provoked runs are clean; without it one of the first ten is not."""
    clean = simulate(provoke(guard, 0), seed=0)
    broken = (simulate(provoke(guard, seed), seed=seed, mutation=guard) for seed in range(WITHIN))

    assert clean.violations == ()
    assert any(verdict.violations for verdict in broken), f"{WITHIN} runs without {guard} showed nothing"


def test_the_same_seed_is_the_same_run():
    """Also in another process, where strings hash otherwise: a failure can be looked at as often as it takes."""
    lines: list[str] = []
    here = simulate_seed(7, trace=lines.append)
    told = subprocess.run(
        [sys.executable, RUN, "--seed", "7"],
        env={**os.environ, "PYTHONHASHSEED": "4"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert here.digest in told.stdout
    assert len(lines) > 200


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_two_thousand_seeds_and_a_crash_at_every_os_call():
    """No violation, every kind of event met a hundred times, in eight minutes of two cores."""
    told = subprocess.run(
        [sys.executable, RUN, "--seeds", "2000", "--sweep", "--jobs", "2"], capture_output=True, text=True, check=False
    )
    print(told.stdout)  # noqa: T201 - the table is the evidence
    cpu_s = re.search(r"^CPU seconds +(\d+)", told.stdout, re.MULTILINE)

    assert told.returncode == 0, told.stdout + told.stderr
    assert cpu_s is not None and int(cpu_s[1]) < 2 * 8 * 60
