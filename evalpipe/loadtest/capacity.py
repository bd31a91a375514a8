"""The whole procedure from nothing to a capacity that can be promised (notes/loadtest.md 4.3).

Written as generators that ask for probes and are told points: the same procedure runs in virtual time and over HTTP.
Closed-loop ladder, open-loop bracket, probes inside it, fit, confirmation, recovery, recommendation.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalpipe.errors import ConfigError
from evalpipe.loadtest.knee import Knee, find_knee
from evalpipe.loadtest.ladder import Ceiling, ceiling_of, climb
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.slo import Slo

BRACKET = (0.7, 0.85, 0.95, 1.05)  # of the ceiling: the ladder has given the scale
MOST_BRACKET = 2.0  # a server that carries twice its closed-loop ceiling was not measured but for its ladder's end
MOST_INVALID = 3  # rows in a row before the client is given up
LOWER = 0.7  # of the lowest rate, while none passes
LEAST_BRACKET = 0.01
QUICK_S = 30.0
RESOLUTION = 0.015  # of the rate: a finer bracket is noise
CONFIRM_SEEDS = 3
STEP_DOWN = 0.02
MOST_STEPS = 5
SPIKE, SPIKE_S = 1.3, 20.0  # of the knee, seconds
RECOVERY_S, SLOW_RECOVERY_S = 90.0, 60.0  # watched for so long; more than this is hysteresis
FACTOR_SMOOTH, FACTOR, FACTOR_CLIFF = 0.8, 0.75, 0.7
CAP_HEADROOM = 1.2


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to look; seconds. quick: ladder and shorter brackets only, good to 10 % in six minutes, not confirmed.

    bracket_s, probe_s, confirm_s: windows of the rows; probes end earlier once certain. confirm_requests: a confirming
    row is long enough for so many. most_probes: inside the bracket. most_users: of the ladder.
    """

    slo: Slo
    seed: int = 0
    quick: bool = False
    bracket_s: float = 45.0
    probe_s: float = 240.0
    confirm_s: float = 120.0
    confirm_requests: int = 2000
    most_probes: int = 6
    most_users: int = 1024
    warmup_s: float = 10.0
    settle_s: float = 45.0  # warm-up near the knee, where a queue takes a minute to form


@dataclass(frozen=True, slots=True)
class Capacity:
    """What to promise. rate: requests/s recommended; in_flight: the cap that must go with it.

    is_confirmed: three seeds just below the knee met the SLO; without it this is a measurement, not a promise.
    factor: of the lower bound. recovery_s: after 20 s at 1.3 times the knee; None: not within the test, or not tried.
    """

    knee: Knee
    ceiling: Ceiling
    rate: float
    in_flight: int
    tokens_per_s: float
    factor: float
    is_confirmed: bool
    has_hysteresis: bool
    recovery_s: float | None
    points: Sequence[Point]

    def to_dict(self) -> dict[str, Any]:
        return {
            "recommended": {
                "request_rate": self.rate,
                "max_in_flight": self.in_flight,
                "output_tokens_per_s": self.tokens_per_s,
                "factor": self.factor,
            },
            "is_confirmed": self.is_confirmed,
            "has_hysteresis": self.has_hysteresis,
            "recovery_s": self.recovery_s,
            "closed_loop": {
                "request_rate": self.ceiling.rate,
                "users": self.ceiling.users,
                "e2el_s": self.ceiling.e2e_s,
                "step_s": self.ceiling.step_s,
                "per_user_s": self.ceiling.per_user_s,
            },
            **self.knee.to_dict(),
            "points": [point.to_dict() for point in self.points],
        }


def capacity(plan: Plan) -> Generator[Probe, Point, Capacity]:
    """Ask for probes one by one and return the capacity. Raises ConfigError when there is nothing to recommend."""
    rungs = yield from climb(seed=plan.seed, most_users=plan.most_users)
    if not rungs:
        raise ConfigError("one user got no answer: there is nothing to measure (see the row's errors)")
    ceiling = ceiling_of(rungs)
    points = yield from bracket(plan, ceiling.rate)
    is_confirmed, recovered = False, None
    if not plan.quick:
        points += yield from probe_inside(plan, points)
        is_confirmed, confirming = yield from confirm(plan, points)
        points += confirming
    knee = knee_of(plan, points)
    if not plan.quick:
        recovered = yield _recovery_probe(plan, knee)
    return _recommend(plan, ceiling, knee, [*rungs, *points], is_confirmed=is_confirmed, recovered=recovered)


def bracket(plan: Plan, ceiling: float) -> Generator[Probe, Point, list[Point]]:
    """Try rates up to one that fails, over the ceiling if need be; and down to one that passes."""
    shares = [*BRACKET]
    while shares[-1] < MOST_BRACKET:
        shares.append(shares[-1] * 1.15)
    points: list[Point] = []
    seconds = min(plan.bracket_s, QUICK_S) if plan.quick else plan.bracket_s
    for share in shares:
        points.append((yield _open(plan, share * ceiling, seconds, number=len(points))))
        if points[-1].is_usable and not is_good(points[-1], plan.slo):
            break
        if len(points) == MOST_INVALID:
            _refuse_all_invalid(points)
    share = shares[0] * LOWER
    while share > LEAST_BRACKET and not any(is_good(point, plan.slo) for point in points if point.is_usable):
        points.append((yield _open(plan, share * ceiling, seconds, number=len(points))))
        share *= LOWER
    return points


def probe_inside(plan: Plan, points: Sequence[Point]) -> Generator[Probe, Point, list[Point]]:
    """Halve the bracket between what passes and what fails, with probes that end once they are certain.

    Each probe draws arrivals of its own: with one seed for all, its luck would be in every probe.
    """
    found: list[Point] = []
    for number in range(plan.most_probes):
        low, high = _edges([*points, *found], plan.slo)
        if high is None or high - low < RESOLUTION * high:
            break
        found.append((yield _near(plan, (low + high) / 2, plan.probe_s, number=20 + number, may_stop=True)))
    return found


def confirm(plan: Plan, points: Sequence[Point]) -> Generator[Probe, Point, tuple[bool, list[Point]]]:
    """Hold a rate one step below the knee with three seeds; one that fails moves both down.

    This takes back what luck gave: of many probes near the knee the search believes the highest that passed.
    """
    tried: list[Point] = []
    rate = knee_of(plan, points).rate * (1 - STEP_DOWN)
    for step in range(MOST_STEPS):
        duration_s = max(plan.confirm_s, plan.confirm_requests / rate)
        for number in range(CONFIRM_SEEDS):
            tried.append((yield _near(plan, rate, duration_s, number=40 + 10 * step + number)))
            if not tried[-1].is_usable:
                return False, tried  # a late client confirms nothing, and says nothing against the rate
            if not is_good(tried[-1], plan.slo):
                break
        else:
            return True, tried
        rate = min(knee_of(plan, [*points, *tried]).rate, rate) * (1 - STEP_DOWN)
    return False, tried


def knee_of(plan: Plan, points: Sequence[Point]) -> Knee:
    """Fit the points. Raises ConfigError when not one of them is usable."""
    _refuse_all_invalid(points)
    binding = next((p.binding for p in points if p.is_usable and p.binding and not is_good(p, plan.slo)), "")
    return find_knee(points, slo=plan.slo, binding=binding, seed=plan.seed)


def is_good(point: Point, slo: Slo) -> bool:
    """The server kept up and as many requests met the SLO as it wants."""
    return not point.verdict.is_over and point.measures.bad_share <= slo.allowed


def _refuse_all_invalid(points: Sequence[Point]) -> None:
    if not any(point.is_usable for point in points):
        why = points[-1].notes[0] if points and points[-1].notes else "no rows"
        raise ConfigError(f"the client is not fit to test this server ({why}); give it a core of its own")


def _open(plan: Plan, rate: float, duration_s: float, *, number: int, may_stop: bool = False) -> Probe:
    return Probe("open", rate, plan.warmup_s, duration_s, seed=1000 * plan.seed + number, may_stop=may_stop)


def _near(plan: Plan, rate: float, duration_s: float, *, number: int, may_stop: bool = False) -> Probe:
    return replace(_open(plan, rate, duration_s, number=number, may_stop=may_stop), warmup_s=plan.settle_s)


def _edges(points: Sequence[Point], slo: Slo) -> tuple[float, float | None]:
    """Return the highest rate below every failure that passed, and the lowest that failed."""
    usable = [point for point in points if point.is_usable]
    failed = min((p.probe.level for p in usable if not is_good(p, slo)), default=None)
    passed = [p.probe.level for p in usable if is_good(p, slo) and (failed is None or p.probe.level < failed)]
    return max(passed, default=0.0), failed


def _recovery_probe(plan: Plan, knee: Knee) -> Probe:
    calm = replace(_open(plan, FACTOR * knee.lower, RECOVERY_S, number=99), warmup_s=0.0)
    return replace(calm, spike=(SPIKE * knee.rate, SPIKE_S))


def _recommend(
    plan: Plan, ceiling: Ceiling, knee: Knee, points: Sequence[Point], *, is_confirmed: bool, recovered: Point | None
) -> Capacity:
    points = [*points, *([recovered] if recovered else [])]
    recovered = recovered if recovered is not None and recovered.is_usable else None
    recovery_s = None if recovered is None else recovered.recovery_s
    has_hysteresis = recovered is not None and (recovery_s is None or recovery_s > SLOW_RECOVERY_S)
    factor = FACTOR_CLIFF if knee.kind == "cliff" or has_hysteresis else FACTOR_SMOOTH if recovered else FACTOR
    rate = factor * knee.lower
    e2e_s = _latency_at(rate, points)
    tokens = [p.measures.output_tokens_per_s / p.measures.requests_per_s for p in points if p.measures.requests_per_s]
    return Capacity(
        knee=knee,
        ceiling=ceiling,
        rate=rate,
        in_flight=max(math.ceil(CAP_HEADROOM * rate * e2e_s), 1),
        tokens_per_s=rate * sum(tokens) / len(tokens),
        factor=factor,
        is_confirmed=is_confirmed,
        has_hysteresis=has_hysteresis,
        recovery_s=recovery_s,
        points=points,
    )


def _latency_at(rate: float, points: Sequence[Point]) -> float:
    """Return the mean latency of the good open-loop point nearest to the rate."""
    good = [p for p in points if p.probe.loop == "open" and p.is_usable and not p.verdict.is_over]
    nearest = min(good, key=lambda p: abs(p.probe.level - rate), default=points[0])
    return nearest.measures.e2e.mean_s
