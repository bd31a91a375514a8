"""Reading stored results: each file checked against the log, losers of a key left out, newest answer shown.

What is read is one version of the log, also beside a driver that works and merges files away: a result never leaves
the log, so it is looked for where it lies now.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evalpipe.errors import StateError
from evalpipe.store.keys import OWED, Group, KeySet
from evalpipe.store.log import read_state
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.schema import RESULT_SCHEMA, conform
from evalpipe.store.segments import read_segment
from evalpipe.store.spec import read_spec
from evalpipe.store.state import LiveFile, LogState


def read_results(store: ObjectStore, state: LogState, *, every_generation: bool = False) -> Iterator[pa.Table]:
    """Yield the results that `state` knows, file by file, as tables of RESULT_SCHEMA; each key once.

    Of several generations the newest answer is shown, else the newest failure, unless every_generation. Raises
    StateError for a damaged file or a result that no file holds, NotFound for a file that is gone.
    """
    wanted = _Wanted(state, items=read_spec(store).items, every_generation=every_generation)
    for table in _live_tables(store, state):
        yield wanted.take(table)
    if wanted.count:
        raise StateError(f"{wanted.count} results that the log of {store.url} names are in none of its files")


def read_all(store: ObjectStore, state: LogState, *, every_generation: bool = False) -> pa.Table:
    """Return all results as one table, sorted by item_index, repeat, generation; for runs that fit in memory."""
    tables = list(read_results(store, state, every_generation=every_generation))
    return sort_rows(pa.concat_tables(tables or [RESULT_SCHEMA.empty_table()]))


def result_files(state: LogState) -> list[LiveFile]:
    return [file for file in state.files.values() if file.info.kind == "results"]


def read_winners(store: ObjectStore, file: LiveFile) -> pa.Table:
    """Read one file of results without the rows that lost to an earlier commit."""
    table = conform(read_segment(store, file.info), RESULT_SCHEMA)
    return table.filter(pc.invert(pa.array(_is_in(table, file.ignored)))) if file.ignored else table


def sort_rows(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in ("item_index", "repeat", "generation")])


def _is_in(table: pa.Table, keys: KeySet) -> NDArray[np.bool_]:
    items, repeats, generations = (table[name].to_numpy() for name in ("item_index", "repeat", "generation"))
    found = np.zeros(table.num_rows, dtype=np.bool_)
    for (repeat, generation), indices in keys.groups():
        found |= (repeats == repeat) & (generations == generation) & np.isin(items, indices)
    return found


def _live_tables(store: ObjectStore, state: LogState) -> Iterator[pa.Table]:
    """Yield the rows of each file; where one was merged away meanwhile, also those of what it was merged into."""
    read: set[str] = set()
    todo = result_files(state)[::-1]
    while todo:
        file = todo.pop()
        try:
            table = read_winners(store, file)
        except NotFound:
            state = _after_merge(store, file)
            todo = [file for file in result_files(state)[::-1] if file.info.path not in read]
            continue
        read.add(file.info.path)
        yield table


def _after_merge(store: ObjectStore, lost: LiveFile) -> LogState:
    """Read the log anew. Raises NotFound when it still names the file that is not there."""
    state = read_state(store)
    if lost.info.path in state.files:
        raise NotFound(f"no object {lost.info.path} in {store.url}, but the log names it; restore it from a copy")
    return state


class _Wanted:
    """The keys still to be shown: bool[items] for each repeat and generation."""

    def __init__(self, state: LogState, *, items: int, every_generation: bool) -> None:
        self._items = items
        self._masks: dict[Group, NDArray[np.bool_]] = {}
        for repeat, generation in state.groups():
            mask = state.codes(repeat=repeat, generation=generation, items=items) != OWED
            if not every_generation:
                mask &= state.visible_generations(repeat=repeat, items=items) == generation
            self._masks[repeat, generation] = mask

    @property
    def count(self) -> int:
        return sum(int(np.count_nonzero(mask)) for mask in self._masks.values())

    def take(self, table: pa.Table) -> pa.Table:
        """Return the rows that are wanted; from then on they are not."""
        indices, repeats, generations = (table[name].to_numpy() for name in ("item_index", "repeat", "generation"))
        if len(indices) and indices.max() >= self._items:
            raise StateError(f"a stored row has item_index {indices.max()}, the run has {self._items} items")
        found = np.zeros(table.num_rows, dtype=np.bool_)
        for (repeat, generation), mask in self._masks.items():
            rows = (repeats == repeat) & (generations == generation)
            found[rows] = mask[indices[rows]]
            mask[indices[rows]] = False
        return table.filter(pa.array(found))
