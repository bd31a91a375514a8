"""Tables of what was killed and what it cost, printed at the end of a test session."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from chaos.history import Standing
from chaos.reckoning import Bill

Row = Mapping[str, object]


class Tables:
    """Rows by title, in the order they came."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {}

    def add(self, title: str, **cells: object) -> None:
        self._rows.setdefault(title, []).append(cells)

    def add_bills(self, title: str, run: str, bills: Sequence[Bill], standings: Sequence[Standing] = ()) -> None:
        """Add one row a kill. standings: what the log knew around each kill, where another driver followed."""
        for bill, known in itertools.zip_longest(bills, standings):
            cells: dict[str, object] = {"run": run, "victim": bill.kill.victim, "moment": bill.kill.moment}
            if known is not None:
                cells |= {"done before": known.before, "after": "-" if known.after is None else known.after}
            cells |= {"inside": bill.inside, "of 2 s": bill.recent, "bound": bill.bound}
            self.add(title, **cells, **{"paid twice": bill.paid_twice})

    def lines(self) -> list[str]:
        return [line for title, rows in self._rows.items() for line in ("", title, *_grid(rows))]


def _grid(rows: Sequence[Row]) -> list[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = [columns, *([str(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
