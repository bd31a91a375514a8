"""From the verdicts of a run, or of one category, to its accuracy and all that is not known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalpipe.scoring import statistics

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One entry a result that is there, failed ones too; every array [n].

    item: the item_index. correct, score: NaN where there is no verdict. is_scorable: whether there should be one.
    """

    item: NDArray[np.int64]
    correct: NDArray[np.float64]
    score: NDArray[np.float64]
    is_scorable: NDArray[np.bool_]

    def where(self, mask: NDArray[np.bool_]) -> Verdicts:
        return Verdicts(self.item[mask], self.correct[mask], self.score[mask], self.is_scorable[mask])


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of right answers.

    expected: results that should have a verdict; scored: those that have one. accuracy = correct / scored, low and high
    its 95 % interval. worst: all without a verdict counted as wrong (the accuracy over all); best: as right. expected,
    worst, best are None where nobody said how many results there should be. mean_score: with partial credit.
    pass_at_k: over the items with at least k verdicts; empty without repeats.
    """

    expected: int | None
    scored: int
    correct: int
    accuracy: float
    low: float
    high: float
    method: str  # "wilson" or "clustered by item"
    worst: float | None
    best: float | None
    mean_score: float
    pass_at_k: Mapping[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the values ready for JSON, the interval as one object, `over_all` beside its bounds."""
        flat = asdict(self)
        interval = {name: flat.pop(name) for name in ("low", "high", "method")}
        by_k = {str(k): value for k, value in flat.pop("pass_at_k").items()}
        return flat | {
            "over_all": self.worst,
            "interval": interval | {"confidence": CONFIDENCE},
            "pass_at_k": by_k,
        }


def measure(verdicts: Verdicts, *, expected: int | None, repeats: int) -> Accuracy | None:
    """Return the accuracy, None where there is no verdict at all.

    expected: results there should be, missing ones too, or None where that is not known.
    """
    scored = verdicts.where(~np.isnan(verdicts.correct))
    if len(scored.correct) == 0:
        return None
    correct, count = int(scored.correct.sum()), len(scored.correct)
    owed = None if expected is None else expected - int((~verdicts.is_scorable).sum())
    worst, best = (None, None) if owed is None else statistics.bounds(correct=correct, answered=count, expected=owed)
    low, high = _interval(scored, repeats=repeats)
    return Accuracy(
        expected=owed,
        scored=count,
        correct=correct,
        accuracy=correct / count,
        low=low,
        high=high,
        method="wilson" if repeats == 1 else "clustered by item",
        worst=worst,
        best=best,
        mean_score=float(scored.score.mean()),
        pass_at_k=_pass_at_k(scored, repeats=repeats),
    )


def _interval(scored: Verdicts, *, repeats: int) -> statistics.Interval:
    if repeats == 1:
        return statistics.wilson(int(scored.correct.sum()), len(scored.correct), confidence=CONFIDENCE)
    return statistics.clustered(scored.correct, scored.item, confidence=CONFIDENCE)


def _pass_at_k(scored: Verdicts, *, repeats: int) -> dict[int, float]:
    """Return the mean estimate for k = 1, 2, 4, .. and repeats, each over the items with at least k verdicts."""
    if repeats == 1:
        return {}
    _, inverse, n = np.unique(scored.item, return_inverse=True, return_counts=True)
    c = np.bincount(inverse, weights=scored.correct).astype(np.int64)
    pairs, weights = np.unique(np.stack([n, c]), axis=1, return_counts=True)  # few pairs, however many items
    found = {}
    for k in sorted({2**power for power in range(repeats.bit_length())} | {repeats}):
        able = pairs[0] >= k
        if able.any():
            estimates = [statistics.pass_at_k(int(n), int(c), k) for n, c in pairs[:, able].T]
            found[k] = float(np.average(estimates, weights=weights[able]))
    return found
