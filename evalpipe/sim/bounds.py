"""What is asked of a law on a case: bounds on its figures, and which of them it breaks. Data and comparisons only.

The numbers are those of the issue that asked for the suite; a law without bounds is shown and not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from evalpipe.control.build import resolve_law
from evalpipe.sim.cases import Case
from evalpipe.sim.scenario import Scenario

#: law -> most over the best fixed limit's makespan: mean of all raced cases, any single one, stationary batching ones
RATIOS: Mapping[str, tuple[float, float, float]] = {
    "progress-or-regress": (1.03, 1.12, 1.03),
    "progress": (1.03, 1.12, 1.03),
    "regress": (1.08, 1.25, 1.25),
    "gradient": (1.20, math.inf, math.inf),
}
#: Laws that promise to be polite as well.
POLITE = frozenset({"progress", "progress-or-regress"})
#: They see inside the streams; where a proxy or a silent model hides those, only what falls back is judged.
NEEDS_STREAMS = frozenset({"progress"})
HIDDEN = frozenset({"buffering proxy"})


@dataclass(frozen=True, slots=True)
class Bound:
    """One figure of a row (evalpipe/sim/row.py) and where it must lie; least, most: None for no bound."""

    figure: str
    most: float | None = None
    least: float | None = None

    def broken_by(self, value: float) -> str:
        """Return what is wrong in a few words, "" for nothing. A figure that could not be measured breaks nothing."""
        if self.most is not None and value > self.most + 1e-9:
            return f"{self.figure} {value:.4g} > {self.most:.4g}"
        if self.least is not None and value < self.least - 1e-9:
            return f"{self.figure} {value:.4g} < {self.least:.4g}"
        return ""


QUOTA_SHARE = {"bucket": 0.95, "fixed": 0.90}
#: Asked of the polite laws on a case, beside what is asked of its kind.
BY_NAME: Mapping[str, Bound] = {
    "bounded queue": Bound("rejected_share", most=0.005),
    "no inside a stream": Bound("rejected_share", most=0.005),
    "short and long answers": Bound("utilisation", least=0.92),
    "cliff, work spread 0": Bound("rejections", most=0),
    "64 workers, lag 0.25 s": Bound("over_best", most=1.05),  # 1.03, and 2 % for the distance
    "a tenth streamed": Bound("over_best", most=1.05),  # 1.03, and 0.02 for what is not seen
    "beside a small one": Bound("guest_ttft_over_alone", most=2.0),
    "tenants": Bound("guest_ttft_over_alone", most=2.0),
}


def bounds_of(case: Case, scenario: Scenario, law: str) -> tuple[Bound, ...]:
    """Return what is asked of a law on a scenario of the case; of a name that stands for another, what of that one."""
    law = resolve_law(law)[0]
    if law not in RATIOS or (law in NEEDS_STREAMS and case.name in HIDDEN):
        return ()
    bounds = [Bound("unfinished", most=0)]
    if case.is_raced:
        bounds.append(Bound("over_best", most=_ratio(case, law)))
    if case.kind == "quota":
        bounds += _quota(case, scenario)
    if law in POLITE:
        bounds += _polite(case, scenario)
    return tuple(bounds)


def most_on_average(law: str) -> float | None:
    """Return what a law's mean over all raced cases may be; None where it is not judged."""
    ratios = RATIOS.get(resolve_law(law)[0])
    return None if ratios is None else ratios[0]


def _ratio(case: Case, law: str) -> float:
    # behind such a proxy the law that holds two is the other one
    _, any_case, stationary = RATIOS["regress" if law == "progress-or-regress" and case.name in HIDDEN else law]
    return stationary if case.is_stationary and case.kind == "batching" else any_case


def _quota(case: Case, scenario: Scenario) -> list[Bound]:
    share = 0.90 if "89" in case.name else QUOTA_SHARE[scenario.course.profile.quota.window]
    return [Bound("quota_share", least=share), Bound("rejections", most=0 if "declared" in case.name else 20)]


def _polite(case: Case, scenario: Scenario) -> list[Bound]:
    bounds = [BY_NAME[case.name]] if case.name in BY_NAME else []
    if case.kind == "batching":
        bounds += [Bound("ttft_over_best", most=2.0), Bound("over_preemptions", most=2.0)]
        if scenario.slots is not None and scenario.slots <= 8:
            bounds.append(Bound("first_peak", most=2.0 * scenario.slots))
    if scenario.levels():
        bounds.append(Bound("settle_s", most=10.0))
    if scenario.outages:
        bounds.append(Bound("outage_errors_over_limit", most=20.0))
    if scenario.runs > 1:
        bounds.append(Bound("jain", least=0.97))
    return bounds
