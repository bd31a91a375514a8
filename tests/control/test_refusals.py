"""What a 429 means, case by case."""

from __future__ import annotations

import pytest

from evalpipe.control.observation import Outcome, Sample
from evalpipe.control.refusals import Cause, Refusals


def refused(found: int, *, kind: str = "rate_limited", retry_after_s: float | None = None) -> Sample:
    return Sample(Outcome.DROPPED, 0.02, kind=kind, in_flight_at_send=found, retry_after_s=retry_after_s)


@pytest.mark.parametrize(
    ("sample", "facts", "cause"),
    [
        (refused(40), {}, Cause.CAP),  # the first, at the most there ever was
        (refused(20), {}, Cause.QUOTA),  # 40 were accepted
        (refused(30), {}, Cause.CAP),  # not so clearly fewer: a neighbour may have come
        (refused(20), {"stuck": 3}, Cause.OVERLOAD),  # it has a queue
        (refused(20), {"gradient": 0.5}, Cause.OVERLOAD),  # it is slow
        (refused(20), {"gradient": 0.9}, Cause.QUOTA),
        (refused(40), {"is_paced": True}, Cause.QUOTA),
        (refused(40), {"is_paced": True, "stuck": 10}, Cause.OVERLOAD),
        (refused(40, retry_after_s=30.0), {}, Cause.QUOTA),
        (refused(40, retry_after_s=1.0), {}, Cause.CAP),
        (refused(1), {}, Cause.QUOTA),  # nothing else was out
        (refused(0), {}, Cause.CAP),  # nobody told
        (refused(20, kind="overloaded"), {}, Cause.OVERLOAD),
        (refused(20, kind="overloaded", retry_after_s=60.0), {"is_paced": True}, Cause.OVERLOAD),
    ],
)
def test_causes(sample: Sample, facts: dict[str, object], cause: Cause):
    """40 in flight were accepted a moment ago; then this one is refused."""
    refusals = Refusals()
    refusals.note_accepted(40, now=100.0)

    assert refusals.judge(sample, **{"stuck": 0, "gradient": None, "is_paced": False} | facts) is cause


def test_what_was_accepted_long_ago_is_forgotten():
    """A cap may have moved: half a minute later the old level says nothing."""
    refusals = Refusals()
    refusals.note_accepted(40, now=0.0)
    refusals.note_accepted(10, now=20.0)
    refusals.note_accepted(10, now=40.0)

    assert refusals.judge(refused(12), stuck=0, gradient=None, is_paced=False) is Cause.CAP
