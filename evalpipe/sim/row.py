"""One row of the suite: a law on a case with a seed, beside the best fixed limit. Figures only, no words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from evalpipe.sim.measure import Heat, average, failed_within, jain, measure, rates_within, settle_s
from evalpipe.sim.profiles import Profile
from evalpipe.sim.scenario import Played, Scenario
from evalpipe.sim.virtual_run import VirtualRun

SPARE_PREEMPTIONS = 10.0  # twice nothing is nothing: so many are forgiven anywhere


@dataclass(frozen=True, slots=True)
class Row:
    """Ratios are over the best fixed limit's run of the same seed; NaN where a figure has no meaning on the case.

    limit: the best fixed one, 0 where it was not sought. over_best: makespan. over_preemptions: preemptions over the
    best's and ten more. rejected_share: of all attempts. quota_share: of what the quota let through meanwhile.
    settle_s: the longest after a change of size. outage_errors_over_limit: attempts that failed in an outage beyond
    what was out when it came. jain: of our own runs, while all were at work. guest_ttft_over_alone: medians.
    mean_in_flight to cv: of the law itself (see Heat). reasons: how often the limit was moved, and why.
    """

    case: str
    kind: str
    seed: int
    law: str
    limit: int
    over_best: float
    ttft_over_best: float
    p50_over_best: float
    p99_over_best: float
    over_preemptions: float
    cv_over_best: float
    rejected_share: float
    quota_share: float
    settle_s: float
    outage_errors_over_limit: float
    jain: float
    guest_ttft_over_alone: float
    makespan_s: float
    rejections: float
    failures: float
    unfinished: float
    attempts: float
    p50_s: float
    p99_s: float
    ttft_p50_s: float
    preemptions: float
    first_peak: float
    peak_in_flight: float
    mean_in_flight: float
    utilisation: float
    cv: float
    reasons: str
    broken: tuple[str, ...] = ()


#: Figures of a Heat that a row shows as they are.
_SHOWN = tuple(f.name for f in fields(Heat) if f.name in {g.name for g in fields(Row)})


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What the law is measured against: the best fixed limit's run, and the first guest's without us; None: neither."""

    limit: int = 0
    heat: Heat | None = None
    guest_alone: VirtualRun | None = None


def row_of(name: str, kind: str, seed: int, law: str, scenario: Scenario, played: Played, yardstick: Yardstick) -> Row:
    """Reduce what was played to a row, not judged yet."""
    heat, best = heat_of(scenario, played), yardstick.heat
    run = played.ours[0]
    return Row(
        case=name,
        kind=kind,
        seed=seed,
        law=law,
        limit=yardstick.limit,
        over_best=_over(heat, best, "makespan_s"),
        ttft_over_best=_over(heat, best, "ttft_p50_s"),
        p50_over_best=_over(heat, best, "p50_s"),
        p99_over_best=_over(heat, best, "p99_s"),
        over_preemptions=heat.preemptions / (best.preemptions + SPARE_PREEMPTIONS) if best is not None else math.nan,
        cv_over_best=_over(heat, best, "cv"),
        rejected_share=heat.rejections / heat.attempts if heat.attempts else math.nan,
        quota_share=_quota_share(scenario.course.profile, run),
        settle_s=_settle_s(scenario, run),
        outage_errors_over_limit=_outage_errors(scenario, run),
        jain=_jain(played.ours),
        guest_ttft_over_alone=_guest_ttft(played, yardstick.guest_alone),
        reasons=_reasons(run),
        **{figure: getattr(heat, figure) for figure in _SHOWN},
    )


def heat_of(scenario: Scenario, played: Played) -> Heat:
    """Return the mean over our runs."""
    slots = scenario.slots if scenario.runs == 1 else None
    return average([measure(run, slots=slots) for run in played.ours])


def _over(heat: Heat, best: Heat | None, figure: str) -> float:
    other = 0.0 if best is None else getattr(best, figure)
    return getattr(heat, figure) / other if other else math.nan


def _quota_share(profile: Profile, run: VirtualRun) -> float:
    """Return what was let in over what the quota allowed, from the end of a bucket's first burst to the last of it."""
    quota = profile.quota
    rate = quota.rpm or quota.tpm
    if rate is None or not len(run.job_id):
        return math.nan
    sent_at = run.done_at - run.rtt_s
    start_s = quota.burst_s if quota.window == "bucket" else 0.0
    cost = np.ones(len(sent_at)) if quota.rpm else run.tokens
    return float(cost[sent_at >= start_s].sum()) / (rate / 60 * (float(sent_at.max()) - start_s))


def _settle_s(scenario: Scenario, run: VirtualRun) -> float:
    """Return the longest of the times it took after each change of size that the run lived to see settle."""
    levels = [level for level in scenario.levels() if level[0] < run.dispatched_s]
    ends = [level[0] for level in levels[1:]] + [run.dispatched_s] * bool(levels)
    took = [
        settle_s(run.ticks, at=at, until=until, least=least, most=most)
        for (at, least, most), until in zip(levels, ends, strict=True)
    ]
    return max(took, default=math.nan)


def _outage_errors(scenario: Scenario, run: VirtualRun) -> float:
    beyond = [
        failed_within(run, outage.start_s, outage.start_s + outage.seconds) - _limit_at(run, outage.start_s)
        for outage in scenario.outages
    ]
    return max(beyond, default=math.nan)


def _limit_at(run: VirtualRun, at: float) -> float:
    return next((tick.limit for tick in reversed(run.ticks) if tick.at <= at), 0.0)


def _jain(runs: Sequence[VirtualRun]) -> float:
    """Judge the second half of the time that all were busy: by then each has found its place."""
    if len(runs) < 2:
        return math.nan
    end_s = min(run.dispatched_s for run in runs)
    return jain(rates_within(runs, end_s / 2, end_s))


def _guest_ttft(played: Played, alone: VirtualRun | None) -> float:
    if alone is None or not played.guests or not len(played.guests[0].ttft_s):
        return math.nan
    return float(np.median(played.guests[0].ttft_s) / np.median(alone.ttft_s))


def _reasons(run: VirtualRun) -> str:
    counts = Counter(timed.change.reason for timed in run.changes)
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
