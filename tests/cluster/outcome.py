"""What a run on the three hosts came to, by the server's ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from witness import Witness, check_run

from evalpipe import open_run
from evalpipe.sim.ledger import Arrival, read_ledger


@dataclass(frozen=True)
class Outcome:
    """seconds: first arrival to last departure at the server. senders: arrival id -> worker that stored its answer."""

    what: str
    seconds: float
    witness: Witness
    arrivals: Sequence[Arrival]
    senders: dict[str, str]
    ratio: float | None = None
    zombies_stopped_s: float | None = None


TABLE_KEY = pytest.StashKey[list[Outcome]]()


def read_outcome(what: str, folder: Path, ledger: Path, *, undisturbed: Outcome | None = None) -> Outcome:
    book = read_ledger(ledger, run=folder.name)
    rows = open_run(folder).table().select(["request_id", "worker"]).to_pylist()
    last = max(departure.t for departure in book.departures.values())
    seconds = last - book.arrivals[0].t
    return Outcome(
        what,
        seconds,
        check_run(folder, ledger),
        book.arrivals,
        {row["request_id"]: row["worker"] for row in rows},
        ratio=None if undisturbed is None else seconds / undisturbed.seconds,
    )


def last_sent(outcome: Outcome, *, before: float) -> dict[str, float]:
    """Return when each worker last sent a request before an instant of the machine's monotonic clock."""
    sent: dict[str, float] = {}
    for arrival in outcome.arrivals:
        if arrival.t < before and arrival.id in outcome.senders:
            sent[outcome.senders[arrival.id]] = arrival.t
    return sent


def table(found: Sequence[Outcome]) -> str:
    lines = [f"{'':34s} {'items':>6s} {'seconds':>8s} {'ratio':>6s} {'paid twice':>11s} {'zombies':>8s} {'I4':>3s}"]
    for one in found:
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        stopped = "" if one.zombies_stopped_s is None else f"{one.zombies_stopped_s:.1f} s"
        witness = one.witness
        lines.append(
            f"{one.what:34s} {witness.rows:6d} {one.seconds:8.1f} {ratio:>6s} {witness.paid_twice:11d} {stopped:>8s}"
            f" {len(witness.over_limit):3d}"
        )
    return "\n".join(lines)
