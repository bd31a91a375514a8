"""What is printed while a run goes on: a live panel, plain lines, JSON lines, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

import orjson
from rich.console import Console
from rich.live import Live

from evalpipe.control.core import TimedChange
from evalpipe.errors import ConfigError
from evalpipe.report.panel import SHOWN_CHANGES, change_line, panel, plain_line
from evalpipe.runtime.progress import Progress

KINDS = ("rich", "plain", "json", "none")
PLAIN_EVERY_S = 10.0


class Display(Protocol):
    def say(self, line: str) -> None:
        """Show one line that is not about progress."""

    def show(self, progress: Progress) -> None:
        """Show how the run stands; called about twice a second."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class PlainDisplay:
    """One line per ten seconds, and one for each move of the limit, on stderr."""

    def __init__(self) -> None:
        self._shown_at = float("-inf")

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def show(self, progress: Progress) -> None:
        for change in progress.changes:
            self.say(change_line(change))
        now = time.monotonic()
        if now - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at = now
            self.say(plain_line(progress))

    def close(self) -> None:
        """Nothing to undo."""


class RichDisplay:
    """A panel that is redrawn in place, on stderr; it stays as it last was."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._changes: list[TimedChange] = []

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def show(self, progress: Progress) -> None:
        self._changes = [*self._changes, *progress.changes][-SHOWN_CHANGES:]
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        self._live.update(panel(progress, self._changes, name="evalpipe", width=self._console.width), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


class JsonDisplay:
    """One JSON object a line on stdout: {"event": "say" | "progress", ...}."""

    def say(self, line: str) -> None:
        self._print({"event": "say", "text": line})

    def show(self, progress: Progress) -> None:
        self._print({"event": "progress", **asdict(progress)})

    def close(self) -> None:
        """Nothing to undo."""

    @staticmethod
    def _print(body: dict[str, object]) -> None:
        print(orjson.dumps(body).decode(), flush=True)


class NoDisplay:
    """Errors and the final table only."""

    def say(self, line: str) -> None:
        """Keep quiet."""

    def show(self, progress: Progress) -> None:
        """Keep quiet."""

    def close(self) -> None:
        """Nothing to undo."""


class Lasting:
    """A display whose loss (a closed pipe, a hung-up terminal) does not stop the run: it goes on unseen."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def say(self, line: str) -> None:
        self._try(lambda: self._display.say(line))

    def show(self, progress: Progress) -> None:
        self._try(lambda: self._display.show(progress))

    def close(self) -> None:
        self._try(self._display.close)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError:
            self._display = NoDisplay()


def make_display(kind: str | None) -> Display:
    """Return the display of that name; None: rich on a terminal, plain elsewhere. Raises ConfigError."""
    kind = kind or ("rich" if sys.stderr.isatty() else "plain")
    match kind:
        case "rich":
            return RichDisplay()
        case "plain":
            return PlainDisplay()
        case "json":
            return JsonDisplay()
        case "none":
            return NoDisplay()
    raise ConfigError(f"--display must be one of {', '.join(KINDS)}, got {kind!r}")
