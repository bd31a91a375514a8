"""What the log knew around a kill, on logs made by hand."""

from __future__ import annotations

from pathlib import Path

from chaos.history import Standing, read_entries, standing
from store.store_rows import SPEC, make_result

from evalpipe.store.entry import Entry
from evalpipe.store.local import LocalStore
from evalpipe.store.log import Log
from evalpipe.store.orphans import adopt_orphans
from evalpipe.store.segments import write_segment


class Dated:
    """A clock for the stamps of entries."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> tuple[float, float]:
        return (0.0, self.now)


def a_log_with_a_death(root: Path) -> list[Entry]:
    """Claimed at 1 s; items 0 and 1 at 2 s; 2 written, then death; at 9 s claimed, 2 adopted; 3 at 12 s."""
    store, clock = LocalStore(root), Dated()
    first, second = Log(store, stamp=clock), Log(store, stamp=clock)

    def write(log: Log, *items: int):
        rows = [make_result(item) for item in items]
        return write_segment(
            store, rows, epoch=log.epoch, writer=log.writer, worker="w0", seq=items[0], spec_sha256=SPEC.sha256
        )

    clock.now = 1.0
    first.claim(SPEC.sha256)
    clock.now = 2.0
    first.commit([write(first, 0, 1)])
    write(first, 2)
    clock.now = 9.0
    second.claim(SPEC.sha256)
    adopt_orphans(store, second)
    clock.now = 12.0
    second.commit([write(second, 3)])
    return read_entries(store)


def test_after_is_what_the_next_driver_took_in_and_no_more(tmp_path: Path):
    """Two were done when it died, three once the next had adopted; what that one did itself does not count."""
    entries = a_log_with_a_death(tmp_path)

    assert standing(entries, 5.0) == Standing(before=2, after=3)


def test_without_a_later_claim_nothing_came_after(tmp_path: Path):
    """A kill after the last claim has no successor in the log."""
    entries = a_log_with_a_death(tmp_path)

    assert standing(entries, 20.0) == Standing(before=4, after=None)
