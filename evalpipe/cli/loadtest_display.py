"""How a load test looks while it goes on: rows as they come, and on a terminal what is running now."""

from __future__ import annotations

import json
import sys
from typing import Protocol

from rich.console import Console
from rich.status import Status

from evalpipe.errors import ConfigError
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.report.loadtest import header, probe_label, row


class LoadDisplay(Protocol):
    def begin(self, probe: Probe) -> None:
        """Say what is run now."""

    def row(self, point: Point) -> None:
        """Show what came of it."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class PlainRows:
    """A table on stderr that grows line by line."""

    def __init__(self) -> None:
        print(header(), file=sys.stderr, flush=True)

    def begin(self, probe: Probe) -> None:
        """Rows only."""

    def row(self, point: Point) -> None:
        print(row(point), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to undo."""


class RichRows:
    """The same table, with a last line that tells what is running and for how long it will."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, width=160)  # rows are 120 wide; a narrower terminal wraps them itself
        self._print(header())
        self._status: Status = self._console.status("looking at the server")
        self._status.start()

    def begin(self, probe: Probe) -> None:
        self._status.update(f"{probe_label(probe)}, about {probe.window.end:.0f} s")

    def row(self, point: Point) -> None:
        self._print(row(point))

    def close(self) -> None:
        self._status.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


class JsonRows:
    """One JSON object a row on stdout: {"event": "row", ..}."""

    def begin(self, probe: Probe) -> None:
        """Rows only."""

    def row(self, point: Point) -> None:
        print(json.dumps({"event": "row", **point.to_dict()}), flush=True)

    def close(self) -> None:
        """Nothing to undo."""


class NoRows:
    """Errors and the conclusion only."""

    def begin(self, probe: Probe) -> None:
        """Keep quiet."""

    def row(self, point: Point) -> None:
        """Keep quiet."""

    def close(self) -> None:
        """Nothing to undo."""


def make_load_display(kind: str | None) -> LoadDisplay:
    """Return the display of that name; None: rich on a terminal, plain elsewhere. Raises ConfigError."""
    match kind or ("rich" if sys.stderr.isatty() else "plain"):
        case "rich":
            return RichRows()
        case "plain":
            return PlainRows()
        case "json":
            return JsonRows()
        case "none":
            return NoRows()
    raise ConfigError(f"--display must be one of rich, plain, json, none, got {kind!r}")
