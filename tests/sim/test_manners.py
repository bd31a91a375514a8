"""How a server says no: the advice it gives, how late it comes, and refusals without a reason."""

from __future__ import annotations

import pytest

from evalpipe.errors import ConfigError
from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.manners import Advice, Burst, LateNo
from evalpipe.sim.quota import Quota, QuotaParams

FULL = Rejection(503, None, "queue_full")


def one_slot() -> ServerModel:
    """A server that takes one request and says 503 to the next."""
    return Batching(BatchingParams(slots=1, max_queue=0, reject_status=503))


@pytest.mark.parametrize("advice_s", [None, 0.0, 89.0])
def test_advice_replaces_what_is_true(advice_s: float | None):
    """A quota of one a minute says 60 s, and the wrapped one whatever it likes; what is let in stays the same."""
    model = Advice(advice_s).around(Quota(one_slot(), QuotaParams(rpm=1, window="fixed")))

    assert model.submit(Job(0, 1, 1), now=0.0) is None
    assert model.submit(Job(1, 1, 1), now=0.0) == Rejection(429, advice_s, "rate_limit_exceeded")


def test_a_late_no_is_an_event_and_not_an_answer_at_the_door():
    """The second request is taken and fails half a second later with what the server said at once."""
    model = LateNo(0.5).around(one_slot())
    model.submit(Job(0, 10, 1_000), now=0.0)

    at_door = model.submit(Job(1, 10, 10), now=0.1)
    early, late = model.advance(0.55), model.advance(0.6)

    assert at_door is None
    assert [event.kind for event in early] == ["first_token"]
    assert Event("failed", 1, 0.6, FULL) in late
    assert model.in_flight == 1


def test_a_late_no_to_a_request_that_went_away_is_not_told():
    """Who hung up hears nothing more."""
    model = LateNo(0.5).around(one_slot())
    model.submit(Job(0, 10, 1_000), now=0.0)
    model.submit(Job(1, 10, 10), now=0.1)

    model.cancel(1, now=0.2)

    assert all(event.job_id == 0 for event in model.advance(5.0))


def test_what_can_never_run_is_still_refused_at_the_door():
    """A prompt that does not fit is the scenario's mistake, not load."""
    model = LateNo(0.5).around(Batching(BatchingParams(kv_tokens=160)))

    rejection = model.submit(Job(0, 1_000, 1), now=0.0)

    assert rejection is not None
    assert rejection.status == 400


def test_a_burst_refuses_so_many_and_no_more():
    """Three requests from second 10 on get a 429; the fourth is served."""
    model = Burst(10.0, 3).around(Batching(BatchingParams()))

    verdicts = [model.submit(Job(i, 1, 1), now=now) for i, now in enumerate((9.9, 10.0, 10.0, 11.0, 11.0))]

    assert [verdict is None for verdict in verdicts] == [True, False, False, False, True]


def test_a_burst_ends_by_itself():
    """Who sends nothing meanwhile is served ten seconds later."""
    model = Burst(10.0, 3).around(Batching(BatchingParams()))

    verdicts = [model.submit(Job(i, 1, 1), now=now) for i, now in enumerate((10.0, 19.9, 20.0))]

    assert [verdict is None for verdict in verdicts] == [False, False, True]


def test_no_delay_at_all_is_refused():
    """A no without delay is an ordinary one."""
    with pytest.raises(ConfigError, match="above 0"):
        LateNo(0.0)
