"""When a probe may end early: Wald's sequential test on the share of bad requests.

Two hypotheses: half of what the SLO allows, and twice of it. Their likelihood ratio is divided by the design effect,
because bad requests come in clusters: a thousand correlated ones say less than a thousand. That a server falls behind
is no reason to stop: it does so after every start, and where it goes on the SLO breaks soon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from evalpipe.loadtest.quantiles import design_effect
from evalpipe.loadtest.records import Request, Window
from evalpipe.loadtest.slo import Slo

ERROR = 0.05  # of each kind
MIN_REQUESTS = 300  # without a bad one they certify 1 % at 95 %
MIN_S = 120.0  # near the knee a queue takes a minute to form: shorter tests pass by luck
BLOCK_S = 5.0


class Ruling(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"


def rule(requests: Sequence[Request], window: Window, *, slo: Slo, now: float) -> Ruling:
    """Return what is known by `now`. The window ends at now, or where the test was to end.

    A request counts once it has met every limit or broken one; the youngest are left out.
    """
    seen = Window(window.start, min(now, window.end))
    if seen.length_s <= 0:
        return Ruling.UNDECIDED
    flags = [
        (request.scheduled_at, slo.is_bad(request, now=now))
        for request in requests
        if seen.holds(request.scheduled_at) and (request.ended_at is not None or slo.is_bad(request, now=now))
    ]
    if len(flags) < MIN_REQUESTS:
        return Ruling.UNDECIDED
    ratio = log_likelihood_ratio(sum(bad for _, bad in flags), len(flags), allowed=slo.allowed)
    ratio /= design_effect(flags, BLOCK_S)
    bound = math.log((1 - ERROR) / ERROR)
    if ratio >= bound:
        return Ruling.FAIL
    return Ruling.PASS if ratio <= -bound and seen.length_s >= MIN_S else Ruling.UNDECIDED


def log_likelihood_ratio(bad: int, n: int, *, allowed: float) -> float:
    """Return log of P(bad of n at twice the allowed share) / P(bad of n at half of it)."""
    high, low = 2 * allowed, allowed / 2
    return bad * math.log(high / low) + (n - bad) * math.log((1 - high) / (1 - low))
