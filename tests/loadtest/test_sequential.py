"""A probe ends when it is certain: not before, and with the promised share of errors."""

from __future__ import annotations

import random

import pytest
from loadrows import SLO, answer, waiting

from evalpipe.loadtest.records import Request, Window
from evalpipe.loadtest.sequential import Ruling, log_likelihood_ratio, rule

WINDOW = Window(10.0, 310.0)


def drawn(bad_share: float, *, until: float, seed: int = 0, rate: float = 20.0) -> list[Request]:
    rng = random.Random(f"drawn/{seed}")
    return [
        answer(i / rate, ttft_s=1.0 if rng.random() < bad_share else 0.05, e2e_s=1.1) for i in range(int(rate * until))
    ]


def test_without_bad_requests_it_passes_after_two_minutes():
    """Three hundred good ones certify 1 %, but a queue needs time to form."""
    assert rule(drawn(0, until=60), WINDOW, slo=SLO, now=62.0) is Ruling.UNDECIDED
    assert rule(drawn(0, until=140), WINDOW, slo=SLO, now=142.0) is Ruling.PASS


def test_many_bad_requests_fail_at_once():
    """A fifth of them bad: certain after twenty seconds."""
    assert rule(drawn(0.2, until=30), WINDOW, slo=SLO, now=32.0) is Ruling.FAIL


def test_the_share_that_is_allowed_stays_undecided():
    """Exactly 1 % is neither a half nor twice of it."""
    assert rule(drawn(0.01, until=60, seed=3), WINDOW, slo=SLO, now=62.0) is Ruling.UNDECIDED


def test_young_requests_do_not_count_as_good():
    """Requests without a token, younger than the limit, say nothing yet; older ones are bad."""
    young = [*drawn(0, until=20), *(waiting(20 + i / 1000) for i in range(99))]

    assert rule(young, WINDOW, slo=SLO, now=20.15) is Ruling.UNDECIDED
    assert rule(young, WINDOW, slo=SLO, now=30.0) is Ruling.UNDECIDED  # of the 300 that are needed, 299
    assert rule([*drawn(0, until=30), *young], WINDOW, slo=SLO, now=31.0) is Ruling.FAIL


@pytest.mark.parametrize(("share", "wrong"), [(0.005, Ruling.FAIL), (0.02, Ruling.PASS)])
def test_errors_of_each_kind_are_rare(share: float, wrong: Ruling):
    """At half and at twice of what is allowed, looked at each 20 s, at most one in ten probes ends wrongly."""
    mistakes = 0
    for seed in range(30):
        requests = drawn(share, until=320, seed=seed)
        rulings = (
            rule([r for r in requests if r.scheduled_at < now - 2], WINDOW, slo=SLO, now=float(now))
            for now in range(40, 320, 20)
        )
        mistakes += next((ruling for ruling in rulings if ruling is not Ruling.UNDECIDED), None) is wrong

    assert mistakes <= 3


def test_the_ratio_is_the_binomial_one():
    """One bad of a hundred at 2 % against 0.5 %."""
    expected = 1.3862943611198906 - 99 * 0.015190161  # log 4, and 99 times log (0.995 / 0.98)

    assert log_likelihood_ratio(1, 100, allowed=0.01) == pytest.approx(expected, abs=1e-4)
