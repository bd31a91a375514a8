"""Watching other processes from outside: the server's ledger while it grows, the run's folder, and waiting for both.

Nothing of another process can be awaited, so this looks every few milliseconds; each wait has a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

LOOK_EVERY_S = 0.004
PATIENCE_S = 120.0  # a bound for what takes seconds, on a machine where ten others want its two cores


class Tail:
    """A ledger that is being written, read as it grows.

    everything: requests of any kind so far. All else is about items (a preflight asks for none): arrivals, answers:
    requests that came, that were answered to the end; inside: id -> item of those in the server now; answered: items
    with at least one answer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.everything = 0
        self.arrivals = 0
        self.answers = 0
        self.inside: dict[str, str] = {}
        self.answered: set[str] = set()

    def look(self) -> Tail:
        """Read what is new; a line that is not whole yet is left for the next look."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            self._take(orjson.loads(line))
        return self

    def _take(self, record: dict[str, Any]) -> None:
        if record["event"] == "arrive":
            self.everything += 1
            if record["item"] is not None:
                self.arrivals += 1
                self.inside[record["id"]] = record["item"]
            return
        item = self.inside.pop(record["id"], None)
        if item is not None and record["outcome"] == "completed":
            self.answers += 1
            self.answered.add(item)


def until(condition: Callable[[], object], *, what: str, within_s: float = PATIENCE_S) -> None:
    """Return as soon as condition() holds. Raises TimeoutError, naming `what` was waited for."""
    give_up_at = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(LOOK_EVERY_S)  # other processes are watched; nothing of them can be awaited


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, temporary files too; none where there is no folder."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
