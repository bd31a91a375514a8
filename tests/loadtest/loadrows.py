"""Requests and points made up for tests of the load test's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.records import OK, LoadRun, Request
from evalpipe.loadtest.rows import make_point
from evalpipe.loadtest.slo import Slo

SLO = Slo()


def answer(
    at: float,
    *,
    ttft_s: float = 0.05,
    e2e_s: float = 1.05,
    late_s: float = 0.0,
    kind: str = OK,
    tokens: int = 101,
    chunks_at: Sequence[float] = (),
) -> Request:
    """An answer to a request scheduled at `at`; a failed one has no token."""
    return Request(
        scheduled_at=at,
        sent_at=at + late_s,
        first_at=at + ttft_s if kind == OK else None,
        ended_at=at + e2e_s,
        kind=kind,
        prompt_tokens=10,
        output_tokens=tokens if kind == OK else 0,
        chunks_at=chunks_at,
    )


def waiting(at: float, *, first_at: float | None = None, tokens: int = 0) -> Request:
    """A request that had not ended when the test stopped."""
    return Request(at, at, first_at, None, "unfinished", 10, tokens)


def evenly(rate: float, until: float, make: Callable[[float], Request] = answer) -> list[Request]:
    """One request each 1 / rate from 0 on."""
    return [make(i / rate) for i in range(int(rate * until))]


def point(rate: float, *, bad_share: float = 0.0, seconds: float = 60.0, tokens: int = 101, seed: int = 0) -> Point:
    """An open-loop row in which every so-manieth request breaks the SLO; more than half of them is an overload."""
    is_over = bad_share > 0.5
    every = round(1 / bad_share) if bad_share else 0

    def make(at: float) -> Request:
        number = round(at * rate)
        return answer(at, ttft_s=1.0 if every and number % every == 0 else 0.05, e2e_s=1.05, tokens=tokens)

    probe = Probe("open", rate, 0.0, seconds, seed=seed)
    return make_point(probe, whole(evenly(rate, seconds, make), seconds + 2, is_flooded=is_over), slo=SLO)


def whole(
    requests: Sequence[Request], ended_at: float, *, sent_until: float | None = None, is_flooded: bool = False
) -> LoadRun:
    """A run of these requests that sent until its end, or only until sent_until."""
    return LoadRun(requests, (), ended_at if sent_until is None else sent_until, ended_at, is_flooded)
