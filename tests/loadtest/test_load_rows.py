"""From requests to a judged row: windows that were cut short, floods and recovery, blocks."""

from __future__ import annotations

import pytest
from loadrows import SLO, answer, evenly, waiting, whole

from evalpipe.loadtest.checks import Client
from evalpipe.loadtest.probe import Probe
from evalpipe.loadtest.rows import make_point, traffic_of
from evalpipe.loadtest.verdict import Verdict

OPEN = Probe("open", 10.0, warmup_s=10.0, duration_s=60.0)


def test_a_row_is_measured_checked_and_judged():
    """Sixty seconds of ten requests a second after ten of warm-up."""
    row = make_point(OPEN, whole(evenly(10, 70), 72.0), slo=SLO)

    assert row.verdict is Verdict.STEADY
    assert row.measures.offered == sum(block.offered for block in row.blocks) == 600
    assert (row.notes, row.binding, row.recovery_s) == ((), "", None)
    assert row.to_dict()["request_rate"] == 10.0


def test_a_test_that_was_cut_short_is_measured_up_to_there():
    """Ctrl-C after 30 s: rates are over the 20 s there are, not over the 60 planned."""
    row = make_point(OPEN, whole(evenly(10, 30), 31.0, sent_until=30.0), slo=SLO)

    assert row.measures.window.length_s == 20.0
    assert row.measures.offered_per_s == 10


def test_a_test_that_was_cut_in_its_warm_up_has_an_empty_row():
    """Nothing measured, nothing divided by zero."""
    row = make_point(OPEN, whole(evenly(10, 5), 6.0, sent_until=5.0), slo=SLO)

    assert row.measures.offered == 0
    assert row.verdict is Verdict.IDLE


@pytest.mark.parametrize(("recovers_s", "expected"), [(0.0, 0.0), (12.0, 15.0), (400.0, None)])
def test_recovery_is_told_after_a_flood(recovers_s: float, expected: float | None):
    """The end of the last five seconds in which more than a tenth were bad; None where that is the end."""
    probe = Probe("open", 10.0, warmup_s=0.0, duration_s=60.0, spike=(30.0, 20.0))
    requests = evenly(10, 80, lambda at: answer(at, ttft_s=0.9 if 20 <= at < 20 + recovers_s else 0.05))

    assert make_point(probe, whole(requests, 82.0), slo=SLO).recovery_s == expected


def test_a_flood_comes_before_its_window():
    """Thirty a second for 20 s, then ten; the window begins with the ten."""
    probe = Probe("open", 10.0, warmup_s=5.0, duration_s=60.0, spike=(30.0, 20.0))

    arrivals = probe.arrivals()

    assert probe.window.start == 25.0
    assert sum(at < 20 for at in arrivals) == pytest.approx(600, abs=75)
    assert sum(at >= 20 for at in arrivals) == pytest.approx(650, abs=80)
    assert arrivals == sorted(arrivals)


def test_a_dying_server_is_a_row_not_an_error():
    """It answers for 20 s, then refuses connections; what hung in it never ended."""
    requests = [*evenly(10, 20), *(waiting(20 + i / 10) for i in range(20))]
    requests += [answer(22 + i / 10, kind="connect_failed", e2e_s=0.01) for i in range(480)]

    row = make_point(OPEN, whole(requests, 80.0), slo=SLO)

    assert row.verdict is Verdict.DOWN
    assert row.binding == "errors"


def test_traffic_is_judged_inside_the_window():
    """What was due and what was sent, without the warm-up."""
    planned = OPEN.arrivals()

    client = traffic_of(Client(cpu_share=0.3), OPEN, planned, [at + 0.001 for at in planned], until=70.0)

    assert client.cpu_share == 0.3
    assert client.planned is not None and client.sent is not None
    assert client.planned.count == sum(10 <= at < 70 for at in planned)
    assert client.sent.ks_p > 0.01
