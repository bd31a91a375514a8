"""Hold a stored run against the ledger of the server that answered it: the outside witness of the tests.

python tests/witness.py runs/latest
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalpipe import open_run
from evalpipe.sim.ledger import Arrival, LedgerKey, read_ledger

Answers = Mapping[LedgerKey, Sequence[tuple[str, bool | None]]]


@dataclass(frozen=True)
class Witness:
    """What agrees and what does not. answered: rows with an answer; others are lists of keys or arrivals."""

    rows: int
    answered: int
    doubled: Sequence[LedgerKey]
    foreign: Sequence[LedgerKey]  # the stored text is none that the server sent for this key
    misjudged: Sequence[LedgerKey]  # our verdict is not the server's
    paid_twice: int
    over_limit: Sequence[Arrival]
    high_water: int

    @property
    def is_clean(self) -> bool:
        return not (self.doubled or self.foreign or self.misjudged or self.over_limit)


def check_run(folder: str | Path, ledger: str | Path | None = None) -> Witness:
    """Compare every row of a run with what the server says it answered. ledger: the one in the run's folder."""
    run = open_run(folder)
    book = read_ledger(ledger or Path(folder) / "sim-ledger.jsonl", run=run.name)
    answers = book.answers()
    rows = run.table().to_pylist()
    keys = [LedgerKey(row["item_id"], row["repeat"], row["generation"]) for row in rows]
    answered = [(key, row) for key, row in zip(keys, rows, strict=True) if row["status"] != "failed"]
    return Witness(
        rows=len(rows),
        answered=len(answered),
        doubled=[key for key in set(keys) if keys.count(key) > 1] if len(set(keys)) < len(keys) else [],
        foreign=[key for key, row in answered if not _said(answers, key, row["response"])],
        misjudged=[key for key, row in answered if _verdict(answers, key, row["response"]) != row["correct"]],
        paid_twice=sum(count - 1 for count in book.paid().values()),
        over_limit=book.limit_violations(),
        high_water=book.high_water,
    )


def _said(answers: Answers, key: LedgerKey, text: str) -> bool:
    return any(sha == _sha256(text) for sha, _ in answers.get(key, []))


def _verdict(answers: Answers, key: LedgerKey, text: str) -> bool | None:
    return next((correct for sha, correct in answers.get(key, []) if sha == _sha256(text)), None)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    found = check_run(sys.argv[1], *sys.argv[2:])
    print(f"{found.rows} rows, {found.answered} answered, high water {found.high_water}, paid twice {found.paid_twice}")
    for name in ("doubled", "foreign", "misjudged", "over_limit"):
        print(f"{name}: {len(getattr(found, name))}")
    sys.exit(0 if found.is_clean else 1)
