"""Quotas in virtual time: the real control code against the simulated servers, judged by what they let through."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest

from evalpipe.control.build import build_law
from evalpipe.control.cost import ExchangeCost
from evalpipe.control.quota import UNDECLARED, Quota
from evalpipe.sim.course import Course
from evalpipe.sim.engine import Job, Rejection, ServerModel
from evalpipe.sim.manners import Advice, Burst
from evalpipe.sim.profiles import profile
from evalpipe.sim.quota import QuotaParams
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup
from evalpipe.sim.wrapped import Wrapped

JOBS = 1_500
BUCKET, WINDOW = QuotaParams(rpm=300), QuotaParams(rpm=300, window="fixed")
TOKENS = QuotaParams(tpm=200_000)


class Noted(Wrapped):
    """A server that notes when each request came and whether it was refused."""

    def __init__(self, model: ServerModel) -> None:
        super().__init__(model)
        self.arrivals: list[tuple[float, bool]] = []

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        rejection = super().submit(job, now=now)
        self.arrivals.append((now, rejection is not None))
        return rejection


@cache
def run(
    *, law: str = "gradient", quota: Quota = UNDECLARED, advice: Advice | None = None, server: QuotaParams
) -> VirtualRun:
    course = Course("quota", replace(profile("vllm"), quota=server), JOBS)
    model: ServerModel = course.server(0)
    setup = VirtualSetup(workers=3, lag_s=0.02, quota=quota)
    return run_virtual(build_law(law), model if advice is None else advice.around(model), course.draw(0), setup=setup)


def used(ran: VirtualRun, *, rpm: int) -> float:
    """Share of a quota of requests that was used; the last answers' time counts as unused."""
    assert ran.unfinished == 0
    return JOBS / (ran.makespan_s * rpm / 60)


@pytest.mark.parametrize(("law", "most"), [("gradient", 20), pytest.param("aimd", 40, marks=pytest.mark.slow)])
def test_a_bucket_is_learned(law: str, most: int):
    """300 requests a minute: 95 % of them are used, and 20 of 1,500 are refused at most.

    aimd may find the rate by itself: its refusals are all at the same level, as a cap's are, and each is one a while.
    """
    ran = run(law=law, server=BUCKET)

    assert used(ran, rpm=300) >= 0.95
    assert 0 < ran.rejections <= most


def test_a_window_is_learned():
    """300 a minute, all at once from each full minute on: 90 % are used, and 20 of 1,500 are refused at most."""
    ran = run(server=WINDOW)

    assert used(ran, rpm=300) >= 0.9
    assert 0 < ran.rejections <= 20


def test_a_bucket_of_tokens_is_learned():
    """200,000 tokens a minute, of which nobody tells: as many requests a minute as they are on average."""
    ran = run(server=TOKENS)

    assert float(ran.work.sum()) == JOBS
    assert ran.makespan_s <= 165  # 532,000 tokens, less the 40,000 of a full bucket, take 148 s
    assert ran.rejections <= 20


@pytest.mark.parametrize("server", [WINDOW, replace(TOKENS, window="fixed")], ids=["requests", "tokens"])
def test_nothing_is_refused_where_the_quota_was_declared(server: QuotaParams):
    """Declared as it is: no refusal at all, even of a window, which forgives nothing."""
    ran = run(quota=Quota(rpm=server.rpm, tpm=server.tpm), server=server)

    assert ran.rejections == 0
    assert server.rpm is None or used(ran, rpm=300) >= 0.95


@pytest.mark.parametrize("advice_s", [89.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (300.0, None))])
def test_no_advice_freezes_a_run(advice_s: float | None):
    """89 s on every refusal of a bucket of 200 a minute, five minutes, or none: 90 % of it is used all the same."""
    ran = run(advice=Advice(advice_s), server=QuotaParams(rpm=200))

    assert used(ran, rpm=200) >= 0.9
    assert ran.rejections <= 20


def test_a_quota_does_not_cut_for_good():
    """After a run on a quota the limit is no lower than what the first refusal found."""
    ran = run(server=BUCKET)
    first = next(timed.change for timed in ran.changes if timed.change.reason in ("rejected", "quota"))

    assert ran.changes[-1].change.new >= first.old
    assert {timed.change.reason for timed in ran.changes} >= {"quota"}


def test_it_is_bound_by_its_quota():
    """Most ticks of such a run say that the quota held something back."""
    ticks = run(server=BUCKET).ticks

    assert sum(tick.is_paced for tick in ticks) > 0.8 * len(ticks)


@pytest.mark.parametrize("workers", [4, 64])
def test_all_workers_brake_within_two_exchanges(workers: int):
    """From the first refusal on, a server refuses all: two exchanges later nothing comes but single probes."""
    course = Course("burst", profile("vllm", slots=128), 1_000)
    server = Noted(Burst(at_s=3.0, count=1_000).around(course.server(0)))
    setup = VirtualSetup(workers=workers, horizon_s=10.0)
    run_virtual(build_law("fixed", start=100), server, course.draw(0), setup=setup)

    first = next(at for at, is_refused in server.arrivals if is_refused)
    exchange_s = max(0.1, ExchangeCost().interval_s(workers))
    late = [at for at, is_refused in server.arrivals if is_refused and at > first + 2 * exchange_s]
    assert 2 <= len(late) <= 6
    assert all(after - before > 2 * exchange_s for before, after in itertools.pairwise(late))
