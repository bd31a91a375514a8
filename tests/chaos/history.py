"""What the log of a run knew around a kill, read from its entries afterwards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalpipe.store.entry import Entry
from evalpipe.store.log import read_entry
from evalpipe.store.objects import ObjectStore
from evalpipe.store.state import LogState


@dataclass(frozen=True, slots=True)
class Standing:
    """Results in the log. before: at the kill. after: once the next driver had taken in what the dead one left.

    after is None where no driver claimed the run later.
    """

    before: int
    after: int | None


def read_entries(store: ObjectStore) -> list[Entry]:
    """Return the whole log, oldest first."""
    entries: list[Entry] = []
    while (entry := read_entry(store, len(entries) + 1)) is not None:
        entries.append(entry)
    return entries


def standing(entries: Sequence[Entry], at: float) -> Standing:
    """Replay the log around an instant. at: seconds of this machine's monotonic clock, which entries carry too."""
    state, before, after = LogState(), 0, None
    claimed = 0
    for entry in entries:
        if claimed and not (entry.epoch == claimed and _is_adoption(entry)):
            break
        state.apply(entry)
        done = state.counts.ok + state.counts.failed
        if entry.mono <= at:
            before = done
        elif entry.claim is not None:
            claimed = entry.epoch
        after = done if claimed else None
    return Standing(before, after)


def _is_adoption(entry: Entry) -> bool:
    """Say whether all files of the entry were written for an earlier epoch than its own."""
    return bool(entry.add) and not entry.remove and all(_epoch_of(info.path) < entry.epoch for info in entry.add)


def _epoch_of(path: str) -> int:
    """Return the epoch in the name of a worker's file."""
    return int(path.rpartition("/")[2].partition("-")[0])
