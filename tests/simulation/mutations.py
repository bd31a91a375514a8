"""Guards that can be taken away, one at a time: a simulation that does not notice is worth nothing.

The switches are here, never in the product: each replaces one method by one that does less, for one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from simulation.disk import Honesty

from evalpipe.control.lease import WorkerLease
from evalpipe.store.keys import DoneSet, KeySet
from evalpipe.store.log import Log
from evalpipe.store.state import LogState

NAMES = ("fsync", "put_if_absent", "epoch", "dedupe", "ttl")


@dataclass(frozen=True, slots=True)
class Mutation:
    """name: the guard that is missing, "" for none."""

    name: str = ""

    @property
    def honesty(self) -> Honesty:
        return Honesty(keeps_fsync=self.name != "fsync", link_refuses=self.name != "put_if_absent")

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace what the mutation takes away, while the simulation runs."""
        if self.name == "epoch":
            with patch.object(Log, "check_owner", lambda self: None), patch.object(LogState, "_check_writer", _in_line):
                yield
        elif self.name == "dedupe":
            with patch.object(DoneSet, "mark", _mark_all):
                yield
        elif self.name == "ttl":
            with patch.object(WorkerLease, "is_expired", lambda self, *, now: False):
                yield
        else:
            yield


def _in_line(self: LogState, entry: Any) -> None:
    """Ask only that the numbers follow each other; who writes does not matter."""
    assert entry.version == self.version + 1


_mark = DoneSet.mark


def _mark_all(self: DoneSet, keys: KeySet, code: int) -> KeySet:
    """Let the last one win and call nobody a loser."""
    _mark(self, keys, code)
    return KeySet()
