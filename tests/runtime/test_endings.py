"""When a driver gives up on its endpoint, and in which words."""

from __future__ import annotations

import pytest

from evalpipe.config import EndpointConfig
from evalpipe.errors import Failure
from evalpipe.runtime.endings import EndpointWatch, ending_of
from evalpipe.runtime.messages import Counters, PollReply

BUSY = Failure("overloaded", code="503", message="the queue is full (HTTP 503)")


def watch() -> EndpointWatch:
    return EndpointWatch(EndpointConfig(), now=0.0)


def hear(one: EndpointWatch, *, until: float, reply: PollReply) -> EndpointWatch:
    for now in range(int(until) + 1):
        one.on_reply("w0.1", reply, now=float(now))
    return one


def test_a_server_that_refuses_in_a_millisecond_has_no_more_patience_than_another():
    """No poll ever sees a request in flight and nothing finishes; the 45 s count from the first refusal all the same.

    It used to be chance when they began: a run against nothing but 503 ended after 198 s.
    """
    said = hear(watch(), until=46, reply=PollReply(queued=8, last_failure=BUSY)).verdict(now=46.0)

    assert said is not None
    assert said.exit_code == 78
    assert said.why == "no answer within 45 s: the server is overloaded or not ready (the queue is full (HTTP 503))"


@pytest.mark.parametrize(
    ("failures", "code", "words"),
    [
        ({"too_long": 8}, 78, "the prompt does not fit the model's context"),
        ({"prompt": 8}, 2, "prompt"),
        ({"too_long": 7}, None, ""),
        ({"too_long": 7, "filtered": 1}, None, ""),
    ],
)
def test_first_items_that_fail_alike_end_the_run(failures: dict[str, int], code: int | None, words: str):
    """The request is wrong (78), or the data set is (2); what fails for different reasons goes on."""
    counters = Counters(finished=sum(failures.values()), failures=failures)

    said = hear(watch(), until=1, reply=PollReply(counters=counters)).verdict(now=1.0)

    assert (None if said is None else said.exit_code) == code
    assert said is None or words in said.why


def test_items_that_failed_before_may_all_fail_again():
    """`resume --failed` with thirty prompts that are too long is no news."""
    one = EndpointWatch(EndpointConfig(), now=0.0, is_first_try=False)
    counters = Counters(finished=8, failures={"too_long": 8})

    hear(one, until=1, reply=PollReply(counters=counters))

    assert one.verdict(now=1.0) is None
    assert one.is_open


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (Failure("quota", message="no credit"), "the account's quota or credit is used up (no credit)"),
        (Failure("timeout", message=""), "no complete answer within the deadline"),
        (
            Failure("timeout", message="no complete answer within the deadline (TimeoutError)"),
            "no complete answer within the deadline (TimeoutError)",
        ),
        (Failure("storage", message="disk full"), "disk full"),
    ],
)
def test_nothing_is_said_twice(failure: Failure, line: str):
    """The table's words, then the server's own where they add something."""
    assert ending_of(failure).why == line
