"""Senders on Ray: together they send one schedule, and what they did is one row."""

from __future__ import annotations

import pytest

from evalpipe.config import SamplingConfig, load_config
from evalpipe.loadtest.probe import Probe
from evalpipe.loadtest.records import LoadRun, Request
from evalpipe.loadtest.slo import Slo
from evalpipe.runtime.load_bench import BenchSettings, LoadBench
from evalpipe.runtime.load_crew import LoadJob
from evalpipe.runtime.load_loop import Health
from evalpipe.runtime.load_prompts import MadeUp
from evalpipe.runtime.session import look
from evalpipe.sim.process import SimServer

JOB = LoadJob("open", [0.1, 0.2, 0.3, 0.4, 0.5], until_s=1.0, drain_s=1.0, most_in_flight=30, first_prompt=7)


def test_shares_are_the_job():
    """By index: no instant and no prompt twice, none left out; the bound is shared too."""
    shares = [JOB.share(worker, 2) for worker in range(2)]

    prompts = [share.first_prompt + n * share.stride for share in shares for n in range(len(share.instants))]
    assert [list(share.instants) for share in shares] == [[0.1, 0.3, 0.5], [0.2, 0.4]]
    assert sorted(prompts) == [7, 8, 9, 10, 11]
    assert [share.most_in_flight for share in shares] == [15, 15]


def test_parts_become_one_row():
    """Requests in order of their schedule, the first end of sending, the last answer, the busiest sender."""
    from evalpipe.runtime.load_ray import merge  # imports ray

    first = LoadRun([Request(0.1, 0.1, None, None), Request(0.3, 0.3, None, None)], (), 9.0, 11.0)
    second = LoadRun([Request(0.2, 0.2, None, None)], (), 8.0, 12.0, is_flooded=True)

    run, health = merge([(first, Health(0.2, [0.001])), (second, Health(0.6, [0.004]))])

    assert [request.scheduled_at for request in run.requests] == [0.1, 0.2, 0.3]
    assert (run.sent_until, run.ended_at, run.is_flooded) == (8.0, 12.0, True)
    assert (health.cpu_share, list(health.lag_s)) == (0.6, [0.001, 0.004])


@pytest.mark.slow
@pytest.mark.ray
def test_two_processes_send_one_schedule(ray_head: str):
    """Every request that was due leaves once, from two processes, and what was sent is as Poisson as what was drawn."""
    from evalpipe.runtime.load_ray import RayCrew

    probe = Probe("open", 20.0, warmup_s=1.0, duration_s=12.0, seed=2)
    with SimServer("vllm", options={"median": 30.0, "sigma": 0.0}) as server:
        config = load_config(flags={"endpoint.base_url": server.base_url}, environ={})
        looked = look(config.endpoint, config.sampling)
        sampling = SamplingConfig()
        with LoadBench(
            looked,
            MadeUp(64),
            BenchSettings(Slo(), sampling),
            make_crew=lambda: RayCrew(looked, sampling, cap=200, workers=2),
        ) as bench:
            row = bench.run(probe)

    client = row.client
    assert client.planned is not None and client.sent is not None
    assert client.sent.count == client.planned.count == row.measures.offered
    assert client.sent.ks_p > 0.01
    assert client.sent.dispersion == pytest.approx(client.planned.dispersion, abs=0.25)
    assert row.measures.errors == {} and row.measures.unfinished == 0
    assert row.measures.server is not None
