"""The observer: what the endpoint tells becomes streams and samples; the clock is its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from evalpipe.control.lease import Permit
from evalpipe.control.observation import FirstTokens, Outcome, Sample
from evalpipe.errors import Failure
from evalpipe.records import Completion, Status
from evalpipe.runtime.observer import Observer

PERMIT = Permit(epoch=3, limit=10, in_flight_at_send=7)
ANSWER = Completion(
    text="yes",
    finish_reason="stop",
    status=Status.OK,
    prompt_tokens=210,
    output_tokens=50,
    usage_source="server",
    rtt_s=2.0,
    ttft_s=0.2,
    tpot_s=None,
)


@dataclass
class Desk:
    """An observer on a clock that the test sets."""

    now: float = 0.0
    observer: Observer = field(init=False)

    def __post_init__(self) -> None:
        self.observer = Observer(lambda: self.now)


def test_a_stream_is_seen_while_it_lasts():
    """It waits, its first token has a time and a size, its tokens come, and then nothing is left of it."""
    desk = Desk()
    watch = desk.observer.begin(200)
    waiting = desk.observer.take()
    desk.now = 0.25
    watch.first_token()
    watch.tokens(30)
    flowing = desk.observer.take()
    desk.observer.answered(watch, ANSWER, PERMIT)
    over = desk.observer.take()

    assert (waiting.waiting, flowing.waiting, over.waiting) == (1, 0, 0)
    assert flowing.first_tokens == (FirstTokens(7, 1, 0, 0.25),)
    assert (flowing.output_tokens, flowing.span_s, watch.tokens_seen) == (30, 0.25, 30)


def test_an_answer_is_a_sample_with_its_permit():
    """Latencies and counts as the endpoint measured them, epoch and limit as it was sent with."""
    desk = Desk()

    desk.observer.answered(desk.observer.begin(200), ANSWER, PERMIT)

    (sample,) = desk.observer.take().samples
    assert sample == Sample(
        Outcome.OK, 2.0, ttft_s=0.2, prompt_tokens=210, output_tokens=50, epoch=3, limit=10, in_flight_at_send=7
    )


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("rate_limited", Outcome.DROPPED), ("overloaded", Outcome.DROPPED), ("reset", Outcome.IGNORED)],
)
def test_a_failure_is_a_sample_of_its_kind(kind: str, outcome: Outcome):
    """What it teaches follows from the failure table."""
    desk = Desk()

    desk.observer.failed(desk.observer.begin(200), Failure(kind, rtt_s=0.5), PERMIT)

    (sample,) = desk.observer.take().samples
    assert (sample.outcome, sample.kind, sample.rtt_s, sample.epoch) == (outcome, kind, 0.5, 3)


def test_a_cancelled_request_is_no_sample():
    """It says nothing about the server, and is gone."""
    desk = Desk()

    desk.observer.abandoned(desk.observer.begin(200))

    seen = desk.observer.take()
    assert (seen.samples, seen.waiting) == ((), 0)


def test_whatever_comes_is_a_sign_of_life():
    """A first token, text, an answer; a failure is none."""
    desk = Desk()
    watch, other = desk.observer.begin(200), desk.observer.begin(200)
    watch.first_token()
    watch.tokens(3)
    desk.observer.answered(watch, ANSWER, PERMIT)
    desk.observer.failed(other, Failure("reset"), PERMIT)

    assert desk.observer.signs_of_life == 3
