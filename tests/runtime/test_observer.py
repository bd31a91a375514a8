"""The observer: what waits, what is overdue, what stalled, and that nothing is counted twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from evalpipe.control.lease import Lease, Permit
from evalpipe.control.observation import FirstTokens
from evalpipe.errors import Failure
from evalpipe.records import Completion, Status
from evalpipe.runtime.observer import Observer, Watch

PERMIT = Permit(epoch=0, limit=10, in_flight_at_send=1)


@dataclass
class Desk:
    """An observer on a clock that the test sets."""

    now: float = 0.0
    observer: Observer = field(init=False)

    def __post_init__(self) -> None:
        self.observer = Observer(lambda: self.now)

    def at(self, now: float) -> Desk:
        self.now = now
        return self

    def sent(self, prompt_tokens: int = 200) -> Watch:
        return self.observer.begin(prompt_tokens)

    def begun(self, prompt_tokens: int = 200) -> Watch:
        watch = self.sent(prompt_tokens)
        watch.first_token()
        return watch

    def answer(self, watch: Watch, *, prompt_tokens: int = 210, output_tokens: int = 50) -> None:
        tokens = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        self.observer.answered(watch, completion(**tokens), PERMIT)


def completion(*, prompt_tokens: int, output_tokens: int) -> Completion:
    return Completion(
        text="yes",
        finish_reason="stop",
        status=Status.OK,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        usage_source="server",
        rtt_s=2.0,
        ttft_s=0.2,
        tpot_s=None,
    )


def table(*entries: tuple[int, float]) -> Lease:
    return Lease(permits=9, epoch=0, limit=9, ttl_s=15.0, next_exchange_s=0.1, overdue=entries)


def test_overdue_is_counted_by_the_table_of_the_lease():
    """200 tokens are bin 7: after 0.5 s; 2,000 tokens get eight times as long; without a table it is two seconds."""
    desk = Desk()
    desk.observer.renew(table((7, 0.5)))
    desk.sent(200), desk.sent(2_000)

    assert [desk.at(now).observer.take().overdue for now in (0.4, 0.6, 3.9, 4.1)] == [0, 1, 1, 2]
    desk.observer.renew(table())
    assert (desk.observer.take().overdue, desk.observer.take().waiting) == (2, 2)


def test_first_tokens_are_told_once_by_size():
    """How many, how many late, the soonest; and the prompt counts as work then, not at the end."""
    desk = Desk()
    desk.observer.renew(table((7, 0.5)))
    watches = [desk.sent(200), desk.sent(250), desk.sent(1_000)]
    for now, watch in zip((0.3, 0.7, 0.8), watches, strict=True):
        desk.at(now)
        watch.first_token()

    seen, after = desk.observer.take(), desk.observer.take()

    assert seen.first_tokens == (FirstTokens(7, 2, 1, 0.3), FirstTokens(9, 1, 0, 0.8))
    assert (seen.prefill_tokens, seen.waiting) == (1_450, 0)
    assert (after.first_tokens, after.prefill_tokens) == ((), 0)


def test_the_servers_counts_settle_the_guess():
    """210 prompt tokens where 200 were expected, 50 output tokens in 30 chunks: the difference is told at the end."""
    desk = Desk()
    watch = desk.begun(200)
    watch.tokens(30)
    first = desk.observer.take()

    desk.answer(watch)

    last = desk.observer.take()
    assert (first.prefill_tokens, first.output_tokens) == (200, 30)
    assert (last.prefill_tokens, last.output_tokens, len(last.samples)) == (10, 20, 1)


def test_an_answer_in_one_piece_has_no_first_token():
    """It is work and a sample, and no evidence of a stream."""
    desk = Desk()
    watch = desk.sent()

    desk.answer(watch)

    seen = desk.observer.take()
    assert (seen.first_tokens, seen.prefill_tokens, seen.output_tokens, seen.waiting) == ((), 210, 50, 0)


def test_a_silent_stream_is_stalled_after_a_second():
    """Counted from the scan that saw its last token; one that goes on is not, nor one that goes on again."""
    desk = Desk()
    silent, lively = desk.begun(), desk.begun()
    silent.tokens(1)

    counts = []
    for step in range(1, 7):
        lively.tokens(5)
        counts.append(desk.at(step * 0.5).observer.take().stalled)
    silent.tokens(1)

    assert counts == [0, 0, 0, 1, 1, 1]
    assert desk.at(3.5).observer.take().stalled == 0


def test_a_slow_stream_is_given_twenty_of_its_gaps():
    """A token each half second for five seconds: silence counts after nine, not after one."""
    desk = Desk()
    slow = desk.begun()
    for step in range(1, 11):
        slow.tokens(1)
        desk.at(step * 0.5).observer.take()

    assert desk.at(13.5).observer.take().stalled == 0
    assert desk.at(15.5).observer.take().stalled == 1


@pytest.mark.parametrize("how", ["answered", "failed", "abandoned"])
@pytest.mark.parametrize("is_begun", [True, False])
def test_nothing_is_left_of_a_request_that_ended(how: str, is_begun: bool):
    """However it ended, it neither waits nor stalls, and a stream that speaks after its end begins nothing."""
    desk = Desk()
    watch = desk.begun() if is_begun else desk.sent()
    ending = {
        "answered": lambda: desk.answer(watch),
        "failed": lambda: desk.observer.failed(watch, Failure("reset"), PERMIT),
        "abandoned": lambda: desk.observer.abandoned(watch),
    }
    ending[how]()
    watch.first_token()

    desk.observer.take()
    seen = desk.at(60.0).observer.take()

    assert (seen.waiting, seen.overdue, seen.stalled, seen.first_tokens) == (0, 0, 0, ())
