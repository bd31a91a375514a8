"""Latency against requests in flight, from every attempt of a run: where it began, where it bends, where it broke."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evalpipe.control.observation import Outcome
from evalpipe.endpoint.failures import outcome_of

Values = NDArray[np.float64]

LEVELS = 24  # of in flight, at most
ENOUGH = 20  # answers at a level, below which its P99 is one answer's
KNEE_SHARE = 0.95  # of the most requests/s
BEYOND = 1.05  # so far past the knee something must have been tried, or it is only where trying ended


@dataclass(frozen=True, slots=True)
class Curve:
    """float64[levels], ascending in in_flight, the median count of each level; p50_s, p99_s: of its answers' rtt.

    baseline_s: the least P50. knee: the smallest level whose rate (Little's law: in flight over mean rtt) reaches 95 %
    of the best; None where hardly more was tried. first_rejection: requests in flight when the
    server first refused one, None if it never did.
    """

    in_flight: Values
    p50_s: Values
    p99_s: Values
    baseline_s: float
    knee: float | None
    first_rejection: float | None


def curve_of(attempts: pa.Table) -> Curve | None:
    """Return None where fewer than 20 answers are there. attempts: columns kind, sent_at, rtt_s, in_flight_at_send."""
    answers = attempts.filter(pc.equal(attempts["kind"], "ok"))
    if answers.num_rows < ENOUGH:
        return None
    in_flight = answers["in_flight_at_send"].to_numpy().astype(np.float64)
    rtt_s = answers["rtt_s"].to_numpy().astype(np.float64)
    groups = _levels(in_flight)
    levels = np.array([np.median(in_flight[group]) for group in groups])
    p50_s, p99_s = np.array([np.quantile(rtt_s[group], (0.5, 0.99)) for group in groups]).T
    rates = levels / np.array([rtt_s[group].mean() for group in groups])
    knee = int(np.argmax(rates >= KNEE_SHARE * rates.max()))
    return Curve(
        in_flight=levels,
        p50_s=p50_s,
        p99_s=p99_s,
        baseline_s=float(p50_s.min()),
        knee=float(levels[knee]) if levels[-1] >= BEYOND * levels[knee] else None,
        first_rejection=_first_rejection(attempts),
    )


def _levels(in_flight: Values) -> list[NDArray[np.int64]]:
    """Split the attempts by in flight into levels of equal width, merged until each has enough answers."""
    enough = max(ENOUGH, len(in_flight) // (2 * LEVELS))
    width = max(float(np.ptp(in_flight)) / LEVELS, 1.0)
    places = ((in_flight - in_flight.min()) / width).astype(np.int64)
    groups: list[NDArray[np.int64]] = []
    gathered = np.array([], dtype=np.int64)
    for place in np.unique(places):
        gathered = np.concatenate([gathered, np.flatnonzero(places == place)])
        if len(gathered) >= enough:
            groups.append(gathered)
            gathered = gathered[:0]
    if len(gathered):
        groups[-1] = np.concatenate([groups[-1], gathered])
    return groups


def _first_rejection(attempts: pa.Table) -> float | None:
    kinds = [kind for kind in pc.unique(attempts["kind"]).to_pylist() if outcome_of(kind) is Outcome.DROPPED]
    refused = attempts.filter(pc.is_in(attempts["kind"], pa.array(kinds, pa.string())))
    if not refused.num_rows:
        return None
    first = pc.index(refused["sent_at"], pc.min(refused["sent_at"])).as_py()
    return float(refused["in_flight_at_send"][first].as_py())
