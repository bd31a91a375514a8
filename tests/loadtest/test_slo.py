"""What is good and what is not, with errors and with requests that have not ended."""

from __future__ import annotations

import pytest
from loadrows import answer, waiting

from evalpipe.errors import ConfigError
from evalpipe.loadtest.slo import Slo, parse_slo


@pytest.mark.parametrize(
    ("request_", "is_bad"),
    [
        (answer(0, ttft_s=0.2), False),
        (answer(0, ttft_s=0.21), True),
        (answer(0, kind="rate_limited"), True),
        (waiting(9.9), False),
        (waiting(9.7), True),
        (waiting(0, first_at=0.1, tokens=5), False),
    ],
)
def test_a_limit_on_the_first_token(request_, is_bad):
    """Counted from the schedule; an error breaks it; no token yet breaks it once it is too old."""
    assert Slo(ttft_s=0.2).is_bad(request_, now=10.0) is is_bad


def test_the_clock_of_ttft_starts_at_the_schedule():
    """A request that was sent 0.3 s late has waited so long, whatever the server did then."""
    late = answer(0, ttft_s=0.35, late_s=0.3)

    assert Slo(ttft_s=0.2).is_bad(late, now=10.0)


def test_limits_on_tokens_and_on_the_whole():
    """TPOT is (last - first) / (tokens - 1); the end-to-end limit counts all."""
    slow = answer(0, ttft_s=0.05, e2e_s=1.05, tokens=11)

    assert Slo(ttft_s=None, tpot_s=0.09).is_bad(slow, now=10.0)
    assert not Slo(ttft_s=None, tpot_s=0.11).is_bad(slow, now=10.0)
    assert Slo(ttft_s=None, e2e_s=1.0).is_bad(slow, now=10.0)


def test_the_limit_that_binds_is_the_one_most_often_broken():
    """Errors are named where they are more than what is slow."""
    slo = Slo(ttft_s=0.2, e2e_s=1.0)
    slow = [answer(0, ttft_s=0.1, e2e_s=2.0)] * 3 + [answer(0, ttft_s=0.5, e2e_s=0.9)]

    assert slo.binding(slow, now=9.0) == "e2el"
    assert slo.binding([*slow, *[answer(0, kind="overloaded")] * 9], now=9.0) == "errors"
    assert slo.binding([answer(0, e2e_s=0.9)], now=9.0) == ""


def test_limits_are_written_as_vllm_writes_them():
    """NAME:MILLISECONDS; without any, TTFT 200 ms."""
    assert parse_slo(["ttft:450", "tpot:40"]) == Slo(ttft_s=0.45, tpot_s=0.04)
    assert parse_slo([], attainment=0.95) == Slo(ttft_s=0.2, attainment=0.95)


@pytest.mark.parametrize("text", ["ttft", "ttft:fast", "itl:5", "ttft:-1"])
def test_other_limits_are_refused(text: str):
    """Wrong names, units or signs are told."""
    with pytest.raises(ConfigError):
        parse_slo([text])


def test_an_attainment_is_a_share():
    """0.99, not 99."""
    with pytest.raises(ConfigError, match="got 99"):
        Slo(attainment=99)
