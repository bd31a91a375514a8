"""Quotas and replicas: what is put before and around a model."""

from __future__ import annotations

import pytest

from evalpipe.errors import ConfigError
from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.cliff import Cliff, CliffParams
from evalpipe.sim.engine import Job, Rejection
from evalpipe.sim.quota import Quota, QuotaParams
from evalpipe.sim.replicas import BalancerParams, Replicas


def quota(**numbers: object) -> Quota:
    return Quota(Cliff(CliffParams(safe=10**6, flat_until=10**6, reject_above=10**6)), QuotaParams(**numbers))


def test_bucket_holds_a_burst_and_refills():
    """300 a minute with 12 s of burst: 60 at once, then one each 0.2 s, and Retry-After says so."""
    model = quota(rpm=300)
    verdicts = [model.submit(Job(i, 1, 1), now=0.0) for i in range(61)]

    assert verdicts[:60] == [None] * 60
    assert verdicts[60] == Rejection(429, pytest.approx(0.2), "rate_limit_exceeded")
    assert model.submit(Job(61, 1, 1), now=0.1) is not None
    assert model.submit(Job(62, 1, 1), now=0.2) is None


def test_fixed_window_opens_all_at_once():
    """In a fixed window all of the minute can go at once; then the wait is until the window's end."""
    model = quota(rpm=10, window="fixed")
    verdicts = [model.submit(Job(i, 1, 1), now=5.0) for i in range(11)]

    assert verdicts[:10] == [None] * 10
    assert verdicts[10] == Rejection(429, 60.0, "rate_limit_exceeded")
    assert model.submit(Job(11, 1, 1), now=64.9) == Rejection(429, pytest.approx(0.1), "rate_limit_exceeded")
    assert model.submit(Job(12, 1, 1), now=65.0) is None


def test_tokens_count_prompt_and_output():
    """6,000 tokens a minute with 12 s of burst: 1,200 at once."""
    model = quota(tpm=6000)

    assert model.submit(Job(0, 1000, 100), now=0.0) is None
    assert model.submit(Job(1, 100, 100), now=0.0) == Rejection(429, pytest.approx(1.0), "rate_limit_exceeded")
    assert model.submit(Job(2, 50, 50), now=0.0) is None


def test_request_larger_than_the_burst_passes_when_the_bucket_is_full():
    """It must not wait for ever; it leaves a debt."""
    model = quota(tpm=600)

    assert model.submit(Job(0, 1000, 1000), now=0.0) is None
    assert model.submit(Job(1, 1, 1), now=100.0) is not None


def test_rejection_by_the_model_costs_no_quota():
    """What the server behind refuses was not served."""
    model = Quota(Batching(BatchingParams(kv_tokens=160)), QuotaParams(rpm=5))

    assert model.submit(Job(0, 1000, 1), now=0.0) == Rejection(400, None, "context_length_exceeded")
    assert model.submit(Job(1, 1, 1), now=0.0) is None


def test_round_robin_is_blind_and_least_loaded_is_not():
    """After one long and one short job, the third goes to the first replica or to the free one."""
    for route, expected in (("round_robin", [2, 0]), ("least_loaded", [1, 1])):
        replicas = [Cliff(CliffParams()) for _ in range(2)]
        model = Replicas(replicas, route=route)
        model.submit(Job(0, 1, 1, work=100.0), now=0.0)
        model.submit(Job(1, 1, 1), now=0.0)
        model.advance(1.0)
        model.submit(Job(2, 1, 1), now=1.0)

        assert [replica.in_flight for replica in replicas] == expected


def test_replicas_merge_events_and_find_jobs():
    """Events come in time order over all replicas; cancel and tokens reach the right one."""
    model = Replicas([Cliff(CliffParams()) for _ in range(2)], route="round_robin")
    for i, work in enumerate((3.0, 1.0, 2.0)):
        model.submit(Job(i, 1, 100, work=work), now=0.0)

    events = model.advance(0.5)
    assert events == sorted(events, key=lambda e: e.at)
    assert model.tokens_of(0) > 0
    model.cancel(0, now=0.5)

    assert [e.job_id for e in model.advance(9.0) if e.kind == "done"] == [2]
    assert (model.in_flight, model.tokens_of(0)) == (0, 0)


def test_wrong_settings_are_refused():
    """A window is a bucket or fixed; a route is one of two."""
    with pytest.raises(ConfigError, match="'sliding'"):
        QuotaParams(window="sliding")
    with pytest.raises(ConfigError, match="'random'"):
        BalancerParams(route="random")
