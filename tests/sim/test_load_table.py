"""The published load test in shape, and knees found where long runs say that they are."""

from __future__ import annotations

import pytest

from evalpipe.loadtest.capacity import Plan, capacity
from evalpipe.loadtest.probe import Probe
from evalpipe.loadtest.search import carry_out
from evalpipe.loadtest.slo import Slo
from evalpipe.loadtest.verdict import Verdict
from evalpipe.report.loadtest_published import PUBLISHED, format_load_table
from evalpipe.sim.bench import VirtualBench
from evalpipe.sim.load_table import LoadRow, load_table
from evalpipe.sim.profiles import profile

#: The rate at which half of all ten-minute tests meet TTFT P99 <= 200 ms (benchmarks/knee.py --truth, 24 seeds a rate).
TRUTH = {"smooth": 27.5, "table": 27.0}


@pytest.fixture(scope="module")
def rows() -> list[LoadRow]:
    return load_table(seeds=(0, 1, 2))


def test_the_published_throughputs(rows: list[LoadRow]):
    """Every row within 5 %, the collapse within 15 %."""
    for ours, theirs in zip(rows, PUBLISHED, strict=True):
        allowed = 0.15 if theirs.preempted else 0.05
        assert ours.tokens_per_s == pytest.approx(theirs.tokens_per_s, rel=allowed), theirs.label


def test_the_published_collapse(rows: list[LoadRow]):
    """At 35/s: TTFT P99 13.4 s and TPOT P99 188 ms within 15 %, preemption 35 to 50 %; none in any other row."""
    *calm, worst = rows

    assert worst.ttft_p99_s == pytest.approx(13.4, rel=0.15)
    assert worst.tpot_p99_s == pytest.approx(0.188, rel=0.15)
    assert 0.35 <= worst.preemption_rate <= 0.50
    assert set(worst.verdicts) == {"collapse"}
    assert [row.preemption_rate for row in calm] == [0] * 5


def test_closed_loop_hides_the_collapse(rows: list[LoadRow]):
    """With 128 users the same server gives its best throughput; the text says so, and what does not add up."""
    closed, worst = rows[2], rows[-1]

    text = format_load_table(rows)

    assert closed.tokens_per_s > 2.5 * worst.tokens_per_s
    assert "Closed loop hides the collapse: 128 users" in text
    assert "20/s x 128 tokens are at most 2,560 tok/s" in text
    assert "mean TPOT of 34.7 ms, above its own P99 of 28.5 ms" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smooth", "table"])
def test_capacity_finds_a_known_knee(name: str):
    """Within 5 % with one seed (16 seeds: benchmarks/knee.py), inside its own interval, confirmed."""
    found = carry_out(capacity(Plan(Slo(), seed=2)), VirtualBench(profile(name)).run)

    assert found.knee.slo.rate == pytest.approx(TRUTH[name], rel=0.05)
    assert found.knee.slo.low * 0.99 <= TRUTH[name] <= found.knee.slo.high
    assert found.is_confirmed
    assert found.rate < 0.8 * TRUTH[name]
    assert found.has_hysteresis is (name == "table")


@pytest.mark.slow
def test_what_is_recommended_holds_for_ten_minutes():
    """At seven tenths of the knee the cliff is far: no violation, no preemption."""
    point = VirtualBench(profile("table")).run(Probe("open", 0.7 * TRUTH["table"], 10.0, 600.0, seed=9))

    assert point.verdict is Verdict.STEADY
    assert (point.measures.bad, point.measures.preemption_rate) == (0, 0)
