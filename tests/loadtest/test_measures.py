"""Every formula against a row worked by hand."""

from __future__ import annotations

import math

import pytest
from loadrows import SLO, answer, evenly, waiting

from evalpipe.loadtest.measures import measure, server_side, tokens_inside
from evalpipe.loadtest.records import ServerSample, Window

MINUTE = Window(10.0, 70.0)


def test_a_steady_row():
    """Ten requests a second of 1.05 s and 101 tokens: Little's 10.5 in flight, 1,010 tokens/s, 10 ms a token."""
    row = measure(evenly(10, 80), MINUTE, ended_at=82.0, slo=SLO)

    assert (row.offered, row.completed, row.unfinished, row.bad) == (600, 600, 0, 0)
    assert row.requests_per_s == row.offered_per_s == row.good_per_s == 10
    assert row.output_tokens_per_s == pytest.approx(1010)
    assert row.prompt_tokens_per_s == pytest.approx(100)
    assert row.in_flight == pytest.approx(10.5)
    assert row.in_flight_peak == 11
    assert row.ttft.seconds(99.0) == pytest.approx(0.05)
    assert row.tpot.seconds(50.0) == pytest.approx(0.010)
    assert row.e2e.seconds(50.0) == pytest.approx(1.05)


def test_ttft_counts_from_the_schedule_and_beside_it_from_the_send():
    """A client 30 ms late shows in the first, not in the second, and in the lateness."""
    row = measure(evenly(10, 80, lambda at: answer(at, late_s=0.03)), MINUTE, ended_at=82.0, slo=SLO)

    assert row.ttft.seconds(50.0) == pytest.approx(0.05)
    assert row.ttft_sent.seconds(50.0) == pytest.approx(0.02)
    assert row.lateness.seconds(99.0) == pytest.approx(0.03)


def test_what_began_before_the_window_gives_it_its_tokens():
    """A request from 5 to 15 s with 100 tokens has half of them in a window from 10 s on, and is not in its cohort."""
    row = measure([answer(4.0, ttft_s=1.0, e2e_s=11.0, tokens=100)], MINUTE, ended_at=80.0, slo=SLO)

    assert row.offered == 0
    assert row.output_tokens_per_s * 60 == pytest.approx(50)


def test_stamped_chunks_share_the_tokens():
    """Three of four chunks in the window bring three quarters; gaps between chunks are the inter-token latency."""
    one = answer(8.0, ttft_s=1.0, e2e_s=5.0, tokens=40, chunks_at=[9.0, 10.0, 11.5, 13.0])
    inside = answer(20.0, ttft_s=1.0, e2e_s=5.0, tokens=40, chunks_at=[21.0, 22.0, 23.5, 25.0])

    row = measure([one, inside], MINUTE, ended_at=80.0, slo=SLO)

    assert tokens_inside(one, MINUTE, 80.0) == 30
    assert row.itl.count == 3
    assert row.itl.seconds(99.0) == pytest.approx(1.5)
    assert row.itl.mean_s == pytest.approx(4 / 3)


def test_errors_and_unfinished_are_counted_never_left_out():
    """Rejections have no latency but are bad; a request without a token counts as longer than its age."""
    requests = [answer(float(at)) for at in range(20, 26)]
    requests += [answer(30.0, kind="rate_limited"), answer(31.0, kind="rate_limited"), waiting(40.0), waiting(41.0)]

    row = measure(requests, MINUTE, ended_at=50.0, slo=SLO)

    assert row.errors == {"rate_limited": 2}
    assert (row.unfinished, row.bad, row.offered) == (2, 4, 10)
    assert row.ttft.open_count == 2
    assert row.ttft.seconds(99.0) == 10.0 and row.ttft.by_percentile[99.0].is_open
    assert row.error_share == pytest.approx(0.2)
    assert row.bad_share == pytest.approx(0.4)


def test_preemptions_are_per_request_that_was_taken_in():
    """Thirty preemptions over nine that were taken in; a counter that falls began again."""
    requests = [*(answer(float(at)) for at in range(20, 29)), answer(30.0, kind="rate_limited")]
    samples = [
        ServerSample(float(at), 4, 2, count, 0.5) for at, count in ((5, 1), (10, 100), (40, 120), (50, 4), (60, 10))
    ]

    row = measure(requests, MINUTE, ended_at=80.0, slo=SLO, samples=samples)

    assert row.server is not None and row.server.preemptions == 30
    assert row.preemption_rate == pytest.approx(30 / 9)
    assert (row.server.waiting, row.server.kv_used) == (2, 0.5)


def test_a_server_without_counters_has_no_preemption_rate():
    """None, not zero; and no server side from fewer than two looks."""
    blind = [ServerSample(float(at), 4, 2) for at in range(10, 60)]

    assert measure(evenly(10, 60), MINUTE, ended_at=80.0, slo=SLO, samples=blind).preemption_rate is None
    assert server_side(blind[:1], MINUTE) is None


def test_an_empty_window_is_empty():
    """No request: no rate, no latency, no division by zero."""
    row = measure([], MINUTE, ended_at=80.0, slo=SLO)

    assert (row.offered, row.bad_share, row.error_share, row.requests_per_s) == (0, 0, 0, 0)
    assert math.isnan(row.ttft.seconds(50.0))
    assert row.to_dict()["median_ttft_ms"] is None


def test_json_has_the_names_of_vllm_bench_serve():
    """Scripts that read its files find their keys, in its units."""
    body = measure(evenly(10, 80), MINUTE, ended_at=82.0, slo=SLO).to_dict()

    assert body["request_throughput"] == 10
    assert body["output_throughput"] == pytest.approx(1010)
    assert body["mean_ttft_ms"] == pytest.approx(50)
    assert body["median_tpot_ms"] == pytest.approx(10)
    assert body["p99_e2el_ms"] == pytest.approx(1050)
    assert {"completed", "duration", "std_itl_ms", "request_goodput", "total_token_throughput"} <= body.keys()
