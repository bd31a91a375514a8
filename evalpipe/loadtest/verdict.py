"""One word on each row, so that nobody quotes a number that is worth nothing."""

from __future__ import annotations

from enum import StrEnum

from evalpipe.loadtest.measures import Measures
from evalpipe.loadtest.records import GONE_KINDS, REFUSAL_KINDS
from evalpipe.loadtest.slo import Slo

GONE_SHARE = 0.5
REFUSED_SHARE = 0.01
COLLAPSE_SHARE = 0.8  # of the best tokens/s of the other rows: more load, fewer tokens
THRASH = 0.10  # preemptions a request
NEAR_SHARE = 0.5  # of the violations that the SLO allows


class Verdict(StrEnum):
    """From best to worst, then the one that says nothing about the server."""

    IDLE = "idle"  # less than one request in flight
    STEADY = "steady"
    NEAR_KNEE = "near knee"
    OVERLOADED = "overloaded"
    COLLAPSE = "collapse"  # overloaded, and it delivers less than it does under less load
    DOWN = "down"
    INVALID = "invalid: client"

    @property
    def is_over(self) -> bool:
        """The server did not carry this load."""
        return self in (Verdict.OVERLOADED, Verdict.COLLAPSE, Verdict.DOWN)


def judge(
    measures: Measures,
    *,
    slo: Slo,
    is_client_bad: bool,
    is_stable: bool,
    is_flooded: bool = False,
    best_tokens_per_s: float = 0.0,
) -> Verdict:
    """Return the verdict on one row.

    is_flooded: the safety bound on requests in flight ended it. best_tokens_per_s: of the usable rows before it. Broken
    connections and a flood without a single answer are `down` whatever the client did: being late makes neither.
    """
    offered = max(measures.offered, 1)
    gone = sum(count for kind, count in measures.errors.items() if kind in GONE_KINDS)
    refused = sum(count for kind, count in measures.errors.items() if kind in REFUSAL_KINDS)
    if gone / offered >= GONE_SHARE or (is_flooded and not measures.completed):
        return Verdict.DOWN
    if is_client_bad:
        return Verdict.INVALID
    if is_flooded or not is_stable or refused / offered > REFUSED_SHARE or gone / offered > REFUSED_SHARE:
        has_collapsed = measures.output_tokens_per_s < COLLAPSE_SHARE * best_tokens_per_s
        is_thrashing = (measures.preemption_rate or 0.0) > THRASH
        return Verdict.COLLAPSE if has_collapsed or is_thrashing else Verdict.OVERLOADED
    if measures.in_flight < 1:
        return Verdict.IDLE
    return Verdict.NEAR_KNEE if measures.bad_share > NEAR_SHARE * slo.allowed else Verdict.STEADY
