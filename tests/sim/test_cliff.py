"""The cliff server against its closed forms."""

from __future__ import annotations

import math
import statistics

import pytest

from evalpipe.errors import ConfigError
from evalpipe.sim.cliff import Cliff, CliffParams, Neighbour
from evalpipe.sim.engine import Job


def makespan(model: Cliff, *, jobs: int, at_once: int) -> float:
    """Keep `at_once` jobs of work 1 inside until all are done; return when."""
    sent = done = 0
    now = 0.0
    while done < jobs:
        while sent < jobs and model.in_flight < at_once:
            assert model.submit(Job(sent, 10, 10), now=now) is None
            sent += 1
        now = model.next_event_at()
        done += sum(event.kind == "done" for event in model.advance(now))
    return now


@pytest.mark.parametrize(
    ("at_once", "expected_s"),
    [(1, 450 * 0.4), (9, 450 / 9 * 0.4), (45, 450 / 45 * 0.4), (50, 450 / 45 * 0.4)],
)
def test_makespan_below_the_cliff(at_once: int, expected_s: float):
    """Each job takes 0.4 s up to 45 at once; from there to 55 the rate stays 45 / 0.4 a second."""
    assert makespan(Cliff(CliffParams()), jobs=450, at_once=at_once) == pytest.approx(expected_s)


def test_makespan_beyond_the_cliff():
    """64 at once take 3.5 s each: 640 jobs are ten rounds."""
    assert makespan(Cliff(CliffParams()), jobs=640 - 10, at_once=63) == pytest.approx(35.0)


def test_request_71_is_rejected():
    """70 may be inside; one more gets a 429 and changes nothing."""
    model = Cliff(CliffParams())
    for i in range(70):
        assert model.submit(Job(i, 1, 1), now=0.0) is None

    rejection = model.submit(Job(70, 1, 1), now=0.0)

    assert rejection is not None
    assert (rejection.status, model.in_flight) == (429, 70)


def test_first_token_after_a_tenth_and_tokens_in_proportion():
    """A job of work 2 alone takes 0.8 s: first token at 0.08 s, half of the rest at 0.44 s."""
    model = Cliff(CliffParams())
    model.submit(Job(0, 10, 101, work=2.0), now=0.0)

    first = model.advance(model.next_event_at())
    model.advance(0.44)

    assert [(e.kind, round(e.at, 9)) for e in first] == [("first_token", 0.08)]
    assert model.tokens_of(0) == pytest.approx(51, abs=1)
    assert [(e.kind, round(e.at, 9)) for e in model.advance(1.0)] == [("done", 0.8)]
    assert model.tokens_emitted == 101


def test_cancel_speeds_up_the_others():
    """50 at once share the rate of 45; when five leave, the others run at full speed."""
    model = Cliff(CliffParams())
    for i in range(50):
        model.submit(Job(i, 1, 1), now=0.0)
    model.advance(0.2)

    for i in range(5):
        model.cancel(i, now=0.2)
    done = [e for e in model.advance(10.0) if e.kind == "done"]

    served = 0.2 * 45 / 50 / 0.4
    assert len(done) == 45
    assert done[0].at == pytest.approx(0.2 + (1 - served) * 0.4)


def test_neighbour_counts_and_is_seeded():
    """Another tenant holds 12 jobs on average, deviates by about 7, and is the same for the same seed."""
    params = CliffParams(neighbour_mean=12.0)
    neighbours = [Neighbour(params, seed) for seed in (1, 1, 2)]
    runs = [[(n.jobs, n.step())[0] for _ in range(4000)] for n in neighbours]

    assert runs[0] == runs[1] != runs[2]
    assert statistics.mean(runs[0]) == pytest.approx(12.5, abs=1.5)  # cut off at 0, so a little above
    assert statistics.stdev(runs[0]) == pytest.approx(6.5, abs=1.0)


def test_neighbour_slows_and_rejects():
    """With a neighbour of 40, the 31st of ours meets the collapse and the bound."""
    params = CliffParams(neighbour_mean=40.0, neighbour_deviation=0.0)
    model = Cliff(params, seed=3)
    for i in range(30):
        assert model.submit(Job(i, 1, 1), now=0.0) is None

    rejection = model.submit(Job(30, 1, 1), now=0.0)
    done = [e.at for e in model.advance(10.0) if e.kind == "done"]

    assert rejection is not None
    assert done == pytest.approx([3.5] * 30)


def test_idle_server_has_nothing_due():
    """Without jobs of ours nothing is due, whatever the neighbour does; time may leap."""
    model = Cliff(CliffParams(neighbour_mean=12.0))
    model.advance(0.0)

    assert model.next_event_at() == math.inf
    assert model.advance(1000.5) == []
    model.submit(Job(0, 1, 1), now=1000.5)
    assert model.next_event_at() <= 1001.0


def test_thresholds_out_of_order_are_refused():
    """safe <= flat_until <= reject_above, or there is no such server."""
    with pytest.raises(ConfigError, match="safe=60, flat_until=55"):
        CliffParams(safe=60)
