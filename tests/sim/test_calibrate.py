"""A twin of a known server: its costs are read back, and it predicts loads that it has not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalpipe.errors import ConfigError
from evalpipe.loadtest.calibrate import Twin, calibrate, fit
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.search import carry_out
from evalpipe.loadtest.verdict import Verdict
from evalpipe.sim.bench import VirtualBench
from evalpipe.sim.profiles import Profile, profile

#: A server without cliffs, and the default one with its 64 slots; answers of 150 tokens.
SERVERS = {
    "smooth": profile("smooth", median=150.0, sigma=0.0),
    "vllm": profile("vllm", median=150.0, sigma=0.0, overhead_s=0.005),
    "wide": profile("vllm", median=150.0, sigma=0.0, slots=512, per_seq_s=1e-4, per_seq_squared_s=2e-7),
}


def twin_of(known: Profile) -> Twin:
    return carry_out(calibrate(prompt_tokens=400, seed=1), VirtualBench(known, prompt_tokens=400).run)


@pytest.mark.parametrize("name", SERVERS)
def test_costs_are_read_back(name: str):
    """Step, prompt token, sequence and overhead within 10 % (what is a thousandth of a step within 5 % of it)."""
    known = SERVERS[name]
    found = twin_of(known)
    costs = known.server

    assert found.step_s == pytest.approx(costs.step_s, rel=0.10)
    assert found.per_prefill_token_s == pytest.approx(costs.per_prefill_token_s, rel=0.10)
    assert found.per_seq_s == pytest.approx(costs.per_seq_s, rel=0.10)
    assert found.overhead_s == pytest.approx(known.overhead_s, rel=0.10, abs=0.0005)
    assert found.output_tokens == pytest.approx(150, rel=0.03)
    assert found.error < 0.03


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("users", [12, 48, 96])
def test_the_twin_predicts_a_load_it_has_not_seen(name: str, users: int):
    """Requests a second, and so the makespan of a run, within 5 %."""
    known = SERVERS[name]
    twin = profile("vllm", **twin_of(known).options())
    probe = Probe("closed", users, 10.0, 60.0, seed=5)

    real, foreseen = (VirtualBench(each, prompt_tokens=400).run(probe).measures for each in (known, twin))

    assert foreseen.requests_per_s == pytest.approx(real.requests_per_s, rel=0.05)


def test_slots_are_seen_where_the_queue_begins():
    """The default server runs 64 at a time; the wide one was never full."""
    assert twin_of(SERVERS["vllm"]).slots == pytest.approx(64, abs=1)
    assert twin_of(SERVERS["smooth"]).slots is None


def test_rows_of_a_late_client_are_not_used():
    """Two of its rungs are wrong by a factor: the fit is that of the others; without the lone user there is none."""
    bench = VirtualBench(SERVERS["vllm"], prompt_tokens=400)

    def late_at(*levels: float, lone: bool = False):
        def run(probe: Probe) -> Point:
            row = bench.run(probe)
            if not (lone if probe.prompt_tokens else probe.level in levels):
                return row
            wrong = replace(row.measures, requests_per_s=row.measures.requests_per_s / 3)
            return replace(row, measures=wrong, verdict=Verdict.INVALID, notes=("sent late",))

        return run

    found = carry_out(calibrate(prompt_tokens=400, seed=1), late_at(4, 16))

    assert found.step_s == pytest.approx(0.008, rel=0.10)
    with pytest.raises(ConfigError, match="rows not used, for sent late: 2"):
        carry_out(calibrate(prompt_tokens=400, seed=1), late_at(lone=True))


def test_too_few_rungs_are_refused():
    """Two numbers cannot give three costs."""
    with pytest.raises(ConfigError, match="three numbers of users"):
        fit([], [])
