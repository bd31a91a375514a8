"""What a worker's streams tell: what waits, is overdue or stalled, and tokens that flow evenly, whoever counts them."""

from __future__ import annotations

import random

import pytest

from evalpipe.control.lease import Lease
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.control.streams import Stream, Streams, TokenFlow, is_in_sample


class Desk:
    """Streams on a clock that the test sets."""

    def __init__(self) -> None:
        self.streams = Streams(now=0.0)
        self.now = 0.0

    def at(self, now: float) -> Desk:
        self.now = now
        return self

    def sent(self, prompt_tokens: int = 200, *, is_streamed: bool = True) -> Stream:
        stream = Stream(self.now, prompt_tokens, is_streamed)
        self.streams.begin(stream)
        return stream

    def begun(self, prompt_tokens: int = 200) -> Stream:
        stream = self.sent(prompt_tokens)
        self.streams.on_first_token(stream, now=self.now)
        return stream

    def answer(self, stream: Stream, *, prompt_tokens: int = 200, output_tokens: int = 50) -> None:
        tokens = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        self.streams.on_end(stream, Sample(Outcome.OK, 2.0, **tokens), now=self.now)

    def take(self) -> Observation:
        return self.streams.take(now=self.now)


def table(*entries: tuple[int, float]) -> Lease:
    return Lease(permits=9, epoch=0, limit=9, ttl_s=15.0, next_exchange_s=0.1, overdue=entries)


def test_overdue_is_counted_by_the_table_of_the_lease():
    """200 tokens are bin 7: after 0.5 s; 2,000 tokens get eight times as long; without a table it is two seconds."""
    desk = Desk()
    desk.streams.renew(table((7, 0.5)))
    desk.sent(200), desk.sent(2_000)

    assert [desk.at(now).take().overdue for now in (0.4, 0.6, 3.9, 4.1)] == [0, 1, 1, 2]
    desk.streams.renew(table())
    assert (desk.take().overdue, desk.take().waiting) == (2, 2)


def test_first_tokens_are_told_once_by_size():
    """How many, how many late, the soonest; and the prompt counts as work then, not at the end."""
    desk = Desk()
    desk.streams.renew(table((7, 0.5)))
    streams = [desk.sent(200), desk.sent(250), desk.sent(1_000)]
    for now, stream in zip((0.3, 0.7, 0.8), streams, strict=True):
        desk.streams.on_first_token(stream, now=now)
        desk.streams.on_first_token(stream, now=now + 0.1)

    seen, after = desk.at(1.0).take(), desk.take()

    assert seen.first_tokens == (FirstTokens(7, 2, 1, 0.3), FirstTokens(9, 1, 0, 0.8))
    assert (seen.prefill_tokens, seen.waiting) == (1_450, 0)
    assert (after.first_tokens, after.prefill_tokens) == ((), 0)


def test_the_end_of_an_answer_is_no_lump():
    """A guess that is a fifth too high is told scaled once an answer was counted, and settled at no single end."""
    desk = Desk()
    first, second = desk.begun(), desk.begun()
    desk.streams.on_tokens(first, 60)
    told = desk.take().output_tokens

    desk.answer(first, output_tokens=50)
    at_the_end = desk.take().output_tokens
    desk.streams.on_tokens(second, 120)

    assert (told, at_the_end, desk.take().output_tokens) == (60, 0, 100)


def test_an_answer_in_one_piece_counts_when_it_is_there():
    """No first token was seen, but it is work, prompt and answer."""
    desk = Desk()

    desk.answer(desk.sent())

    seen = desk.take()
    assert (seen.first_tokens, seen.prefill_tokens, seen.output_tokens, seen.waiting) == ((), 200, 50, 0)


def test_what_is_not_streamed_is_unseen_until_it_ends():
    """It neither waits nor is overdue; its prompt counts when it is sent, once."""
    desk = Desk()
    whole = desk.sent(300, is_streamed=False)

    seen = desk.at(9.0).take()
    desk.answer(whole, prompt_tokens=300, output_tokens=70)
    after = desk.take()

    assert (seen.unseen, seen.waiting, seen.overdue, seen.prefill_tokens) == (1, 0, 0, 300)
    assert (after.unseen, after.prefill_tokens, after.output_tokens) == (0, 0, 70)


def test_a_silent_stream_is_stalled_after_a_second():
    """Counted from the scan that saw its last token; one that goes on is not, nor one that goes on again."""
    desk = Desk()
    silent, lively = desk.begun(), desk.begun()
    desk.streams.on_tokens(silent, 1)

    counts = []
    for step in range(1, 7):
        desk.streams.on_tokens(lively, 5)
        counts.append(desk.at(step * 0.5).take().stalled)
    desk.streams.on_tokens(silent, 1)

    assert counts == [0, 0, 0, 1, 1, 1]
    assert desk.at(3.5).take().stalled == 0


def test_a_slow_stream_is_given_twenty_of_its_gaps():
    """A token each half second for five seconds: silence counts after nine, not after one."""
    desk = Desk()
    slow = desk.begun()
    for step in range(1, 11):
        desk.streams.on_tokens(slow, 1)
        desk.at(step * 0.5).take()

    assert desk.at(13.5).take().stalled == 0
    assert desk.at(15.5).take().stalled == 1


def test_the_time_that_counts_cover_is_told():
    """A worker that is late tells more tokens, and of how much longer."""
    desk = Desk()

    assert [desk.at(now).take().span_s for now in (0.5, 0.75, 1.75)] == [0.5, 0.25, 1.0]


def test_the_time_that_streams_were_answered_is_told():
    """From first token to end, of each; not while one waits, nor while it is stalled."""
    desk = Desk()
    early = desk.begun()
    desk.at(1.0).streams.on_first_token(desk.sent(), now=1.0)
    desk.streams.on_tokens(early, 5)
    desk.at(1.5).answer(early)
    desk.sent()

    assert desk.at(2.0).take().stream_s == pytest.approx(1.5 + 1.0)
    assert [desk.at(now).take().stalled for now in (2.5, 3.5, 4.0)] == [1, 1, 1]
    assert desk.at(5.0).take().stream_s == 0.0


@pytest.mark.parametrize("sample", [None, Sample(Outcome.IGNORED, 1.0, kind="reset"), Sample(Outcome.OK, 1.0)])
@pytest.mark.parametrize("how", ["sent", "begun", "whole"])
def test_nothing_is_left_of_a_request_that_ended(how: str, sample: Sample | None):
    """However it ended, it neither waits nor stalls, and a stream that speaks after its end begins nothing."""
    desk = Desk()
    stream = desk.begun() if how == "begun" else desk.sent(is_streamed=how == "sent")

    desk.streams.on_end(stream, sample, now=0.5)
    desk.streams.on_first_token(stream, now=1.0)

    desk.take()
    seen = desk.at(60.0).take()
    assert (seen.waiting, seen.overdue, seen.stalled, seen.unseen, seen.first_tokens) == (0, 0, 0, 0, ())


def test_a_tenth_is_sampled_and_all_of_a_few():
    """Up to 16 in flight every request is streamed."""
    rng = random.Random(1)

    assert all(is_in_sample(16, rng) for _ in range(100))
    assert sum(is_in_sample(17, rng) for _ in range(10_000)) == pytest.approx(1_000, rel=0.1)


def test_no_fraction_of_a_token_is_lost():
    """Of 1,000 guesses of one token each that count two thirds, 666 are told."""
    flow = TokenFlow()
    flow.learn(guessed=300, counted=200)

    told = 0
    for _ in range(1_000):
        flow.add(1)
        told += flow.take()

    assert told == 666


def test_the_scale_follows_what_is_counted_now():
    """After twice the tokens that it remembers an old habit is gone; a server that counts nothing teaches nothing."""
    flow = TokenFlow()
    for counted in [100] * 500 + [50] * 500 + [0] * 500:
        flow.learn(guessed=100, counted=counted)
    flow.add(1_000)

    assert flow.take() == pytest.approx(500, rel=0.1)
