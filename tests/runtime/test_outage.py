"""An outage spends no attempts and is probed by one request at a time."""

import pytest

from evalpipe.runtime.outage import OUT_AFTER, OutageWatch


def fail(watch: OutageWatch, times: int, *, kind: str = "connect_failed", now: float = 0.0) -> OutageWatch:
    for _ in range(times):
        watch.on_failure(kind, now=now)
    return watch


def test_a_handful_of_failures_is_no_outage():
    """Resets come alone with some servers; sending goes on."""
    watch = fail(OutageWatch(), OUT_AFTER - 1)

    assert not watch.is_out
    assert watch.can_send(now=0.0, running=50)


def test_an_outage_is_probed_one_at_a_time_ever_more_slowly():
    """After the eighth failure in a row: half a second, then 1.6 times as long each, at most 5 s."""
    watch = fail(OutageWatch(), OUT_AFTER)

    assert watch.is_out
    assert not watch.can_send(now=0.49, running=0)
    assert watch.can_send(now=0.51, running=0)
    assert not watch.can_send(now=0.51, running=1)
    fail(watch, 1, now=1.0)
    assert not watch.can_send(now=1.79, running=0)
    assert watch.can_send(now=1.81, running=0)
    fail(watch, 30, now=10.0)
    assert watch.can_send(now=15.1, running=0)


def test_one_answer_ends_it():
    """After it everything may go again."""
    watch = fail(OutageWatch(), 40)

    watch.on_answer()

    assert not watch.is_out
    assert watch.can_send(now=0.0, running=99)


@pytest.mark.parametrize("kind", ["bad_request", "rate_limited", "no_answer", "cut"])
def test_what_a_live_server_says_is_no_outage(kind: str):
    """Refusals and bad answers come from a server that is there."""
    assert not fail(OutageWatch(), 100, kind=kind).is_out
