"""From the points of open loops to the rate a server carries: a fit with an interval, not the last point that passed.

Two knees: where the SLO breaks, and where the server stops keeping up. Near either a probe passes or fails by luck, so
one that passed is no proof; all probes are fitted together, and the interval comes from drawing probes and stretches
of time anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evalpipe.loadtest.isotonic import crossing, pool_adjacent
from evalpipe.loadtest.probe import Block, Point
from evalpipe.loadtest.slo import Slo
from evalpipe.loadtest.verdict import COLLAPSE_SHARE

DRAWS = 400
CONFIDENCE = 0.90
#: No rate is known better than Poisson counts of minutes repeat; and below, than by what tests of minutes read higher
#: than tests of ten (2026-11, benchmarks/knee.py, before these bounds: +1.4 % on `smooth`, 12 of 16 intervals held).
LEAST_BELOW, LEAST_ABOVE = 0.025, 0.01

KneeKind = Literal["smooth", "cliff"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rate in requests/s with its 90 % interval. is_bound: no probe failed, the truth lies above."""

    rate: float
    low: float
    high: float
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Knee:
    """slo: highest rate that meets the SLO; binding: the limit that breaks first. stability: that the server sustains.

    kind: cliff where more load means far fewer tokens, smooth where they only stop growing.
    """

    slo: Estimate
    stability: Estimate
    binding: str
    kind: KneeKind

    @property
    def lower(self) -> float:
        return min(self.slo.low, self.stability.low)

    @property
    def rate(self) -> float:
        return min(self.slo.rate, self.stability.rate)

    def to_dict(self) -> dict[str, Any]:
        def plain(each: Estimate) -> dict[str, Any]:
            return {"rate": each.rate, "low": each.low, "high": each.high, "is_bound": each.is_bound}

        return {
            "slo_knee": plain(self.slo),
            "stability_knee": plain(self.stability),
            "binding": self.binding,
            "kind": self.kind,
        }


def find_knee(points: Sequence[Point], *, slo: Slo, binding: str = "", seed: int = 0) -> Knee:
    """Fit the usable points of open loops; at least one. seed: of the bootstrap."""
    usable = [p for p in points if p.is_usable and p.probe.loop == "open" and p.measures.offered]
    usable.sort(key=lambda point: point.probe.level)
    return Knee(
        slo=_estimate(usable, lambda drawn: _slo_knee(drawn, slo=slo), seed=seed),
        stability=_estimate(usable, _stability_knee, seed=seed),
        binding=binding,
        kind=_kind(usable),
    )


#: A probe as the fit sees it: its rate, its stretches of time, whether the server kept up.
_Seen = tuple[float, Sequence[Block], bool]


def _estimate(points: Sequence[Point], knee: Callable[[Sequence[_Seen]], float | None], *, seed: int) -> Estimate:
    seen: list[_Seen] = [(p.probe.level, p.blocks, not p.verdict.is_over) for p in points]
    highest = seen[-1][0]
    found = knee(seen)
    rng = random.Random(f"bootstrap/{seed}")
    drawn = sorted(knee(_draw(seen, rng)) or highest for _ in range(DRAWS))
    tail = (1 - CONFIDENCE) / 2
    rate = highest if found is None else found
    low = min(drawn[int(tail * DRAWS)], rate * (1 - LEAST_BELOW))
    high = max(drawn[int((1 - tail) * DRAWS)], rate * (1 + LEAST_ABOVE))
    return Estimate(rate, low, high, is_bound=found is None)


def _draw(seen: Sequence[_Seen], rng: random.Random) -> list[_Seen]:
    """Draw probes, then stretches of each: seeds differ from each other more than the minutes of one seed do.

    The load that came in a probe was not its rate: counts of n Poisson arrivals spread by 1 / sqrt(n), and those of the
    next test that it stands for by as much again. So each drawn probe is moved beside its rate by sqrt(2 / n) of it.
    """
    drawn = []
    for rate, blocks, kept_up in rng.choices(seen, k=len(seen)):
        arrivals = max(sum(block.offered for block in blocks), 1)
        drawn.append(
            (rate * (1 + rng.gauss(0, 1) * math.sqrt(2 / arrivals)), rng.choices(blocks, k=len(blocks)), kept_up)
        )
    return sorted(drawn, key=lambda each: each[0])


def _slo_knee(seen: Sequence[_Seen], *, slo: Slo) -> float | None:
    rates, shares, weights = [], [], []
    for rate, blocks, _ in seen:
        offered = sum(block.offered for block in blocks)
        rates.append(rate)
        shares.append(sum(block.bad for block in blocks) / max(offered, 1))
        weights.append(offered + 1.0)
    return crossing(rates, pool_adjacent(shares, weights), level=slo.allowed, floor=slo.allowed / 20)


def _stability_knee(seen: Sequence[_Seen]) -> float | None:
    rates = [rate for rate, _, _ in seen]
    shares = pool_adjacent([0.02 if kept_up else 1.0 for _, _, kept_up in seen], [1.0] * len(seen))
    return crossing(rates, shares, level=0.5, floor=0.02)


def _kind(points: Sequence[Point]) -> KneeKind:
    kept = [p.measures.output_tokens_per_s for p in points if not p.verdict.is_over]
    over = [p.measures.output_tokens_per_s for p in points if p.verdict.is_over]
    return "cliff" if kept and over and min(over) < COLLAPSE_SHARE * max(kept) else "smooth"
