"""What each kill cost, counted from the server's ledger alone. Pure.

An attempt was paid when the server spent tokens on it. One whose item had to be paid again counts against the first
kill after it came in (of two workers, the wrong one may have died: then only the sum over all kills is exact). What
may be lost by one kill is what was in the server then, and what was answered in the two seconds before.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from evalpipe.sim.ledger import Ledger, LedgerKey

FLUSH_S = 2.0  # a worker keeps an answer in memory at most so long (run.flush_s by default; tests set it lower)


@dataclass(frozen=True, slots=True)
class Kill:
    """at: seconds, monotonic. victim: what was killed. moment: where in the run.

    dying_s: how much longer those may send that die with it: workers outlive their driver by 0.05 s or more.
    """

    at: float
    victim: str
    moment: str
    dying_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bill:
    """inside: requests in the server when it was killed. recent: answers of the two seconds before that."""

    kill: Kill
    paid_twice: int
    inside: int
    recent: int

    @property
    def bound(self) -> int:
        return self.inside + self.recent


def bills(ledger: Ledger, kills: Sequence[Kill]) -> list[Bill]:
    """Return one bill a kill, in order of time. What came in after the last kill counts against none."""
    lost = _lost(ledger)
    result, began = [], float("-inf")
    for kill, following in itertools.zip_longest(kills, [kill.at for kill in kills[1:]], fillvalue=float("inf")):
        dead = min(kill.at + kill.dying_s, following)
        paid_twice = sum(began < t <= dead for t in lost)
        result.append(Bill(kill, paid_twice, _inside(ledger, kill.at, dead), _recent(ledger, kill.at)))
        began = dead
    return result


def _lost(ledger: Ledger) -> list[float]:
    """Return when each paid attempt came in whose item was paid again later."""
    times: dict[LedgerKey, list[float]] = defaultdict(list)
    for arrival in ledger.arrivals:
        departure = ledger.departures.get(arrival.id)
        if arrival.key is not None and departure is not None and departure.output_tokens > 0:
            times[arrival.key].append(arrival.t)
    return [t for arrived in times.values() for t in sorted(arrived)[:-1]]


def _inside(ledger: Ledger, at: float, dead: float) -> int:
    """Count requests in the server at the kill, those included that the dying sent until they were dead."""
    count = 0
    for arrival in ledger.arrivals:
        departure = ledger.departures.get(arrival.id)
        count += arrival.t <= dead and (departure is None or departure.t > at)
    return count


def _recent(ledger: Ledger, at: float) -> int:
    return sum(at - FLUSH_S < d.t <= at for d in ledger.departures.values() if d.outcome == "completed")
