"""Reading beside a living driver: whatever it commits or merges away meanwhile, the answer is that of one moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from store_rows import SmallRun, Unsynced, copy_run

from evalpipe.errors import StateError
from evalpipe.store.compact import compact
from evalpipe.store.local import LocalStore
from evalpipe.store.log import read_state
from evalpipe.store.objects import NotFound
from evalpipe.store.rows import read_all
from evalpipe.store.verify import Report, verify


class Watched(LocalStore):
    """A store that lets something happen before its n-th read."""

    def __init__(self, root: Path, *, at: int, happen: Callable[[], None]) -> None:
        super().__init__(root)
        self._at, self._happen = at, happen
        self.reads = 0

    def get(self, key: str) -> bytes:
        self.reads += 1
        if self.reads == self._at:
            self._happen()
        return super().get(key)


def build(root: Path) -> SmallRun:
    """A part of items 0 to 3, two segments with 4 to 9 (3 again, 6 failed), an attempt of 6 in a new generation."""
    run = SmallRun(LocalStore(root, os_calls=Unsynced()))
    run.log.commit([run.write(range(4))])
    compact(run.store, run.log)
    run.log.commit([run.write([3, 4, 5]), run.write([6, 7], failed=[6])])
    run.log.commit([run.write([8, 9])])
    run.log.commit([run.write([6], generation=1)])
    return run


def work_on(run: SmallRun) -> None:
    """What a driver does: one more commit, a merge in two parts, and a commit after it."""
    run.log.commit([run.write([10, 11], failed=[11])])
    compact(run.store, run.log, max_rows=5)
    run.log.commit([run.write([12])])


def at_each_read(root: Path, look: Callable[[LocalStore], object]) -> list[object]:
    """Look at a fresh run again and again, the driver working before the first, second, .. read."""
    seen: list[object] = []
    original = build(root / "original")
    while True:
        run = copy_run(original, root / str(len(seen)))
        store = Watched(Path(run.store.url), at=len(seen) + 1, happen=lambda run=run: work_on(run))
        seen.append(look(store))
        if store.reads < len(seen):  # it was over before the driver could begin
            return seen


@pytest.mark.parametrize("every_generation", [False, True])
def test_results_read_while_segments_are_merged_are_those_of_the_log_that_was_read(
    tmp_path: Path, every_generation: bool
):
    """None lost, none twice, wherever the merge falls; what was committed after that log was read is left out."""

    def look(store: LocalStore) -> tuple[list[int], int]:
        state = read_state(store)
        table: pa.Table = read_all(store, state, every_generation=every_generation)
        return table["item_index"].to_pylist(), state.version

    seen = at_each_read(tmp_path, look)

    early = [*range(7), 6, *range(7, 10)] if every_generation else list(range(10))
    versions = {version: items for items, version in seen}
    assert versions.pop(6) == early
    assert all(items == [*early, 10, 11] or items == [*early, 10, 11, 12] for items in versions.values())
    assert len(seen) > 12


def test_verify_beside_a_merge_finds_everything_once(tmp_path: Path):
    """No file is reported as gone or as a stranger, no key as doubled, whenever the merge happens."""
    seen = at_each_read(tmp_path, verify)

    for report in seen:
        assert isinstance(report, Report)
        assert report.problems == ()
        assert (report.ok, report.failed) in ((10, 0), (11, 1), (12, 1))
        assert report.leftovers == ()
    assert len(seen) > 12


def test_a_file_that_is_gone_is_not_taken_for_merged(tmp_path: Path):
    """The log still names it: an error for a reader, not fewer rows."""
    run = build(tmp_path)
    gone = run.store.list("segments/")[0]
    run.store.delete(gone)

    with pytest.raises(NotFound, match="but the log names it"):
        read_all(run.store, read_state(run.store))


def test_keys_that_no_file_holds_are_an_error(tmp_path: Path):
    """The log says more than the files: a reader counts what it shows against the log."""
    run = build(tmp_path)
    state = read_state(run.store)
    state.files.popitem()

    with pytest.raises(StateError, match=r"1 results that the log of .* names are in none of its files"):
        read_all(run.store, state)
