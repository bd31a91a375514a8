"""Reading stored results: each file checked against the log, losers of a key left out, newest answer shown."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evalpipe.errors import StateError
from evalpipe.store.keys import KeySet
from evalpipe.store.objects import ObjectStore
from evalpipe.store.schema import RESULT_SCHEMA, conform
from evalpipe.store.segments import read_segment
from evalpipe.store.spec import read_spec
from evalpipe.store.state import LiveFile, LogState


def read_results(store: ObjectStore, state: LogState, *, every_generation: bool = False) -> Iterator[pa.Table]:
    """Yield the results file by file, as tables of RESULT_SCHEMA; each key once.

    Of several generations the newest answer is shown, else the newest failure, unless every_generation. Raises
    StateError for a damaged file; NotFound when one was compacted away since the replay: replay and read again.
    """
    items = read_spec(store).items
    for file in result_files(state):
        table = read_winners(store, file)
        yield table if every_generation else table.filter(pa.array(_is_visible(table, state, items=items)))


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


def _is_visible(table: pa.Table, state: LogState, *, items: int) -> NDArray[np.bool_]:
    indices, repeats, generations = (table[name].to_numpy() for name in ("item_index", "repeat", "generation"))
    if len(indices) and indices.max() >= items:
        raise StateError(f"a stored row has item_index {indices.max()}, the run has {items} items")
    visible = np.zeros(table.num_rows, dtype=np.bool_)
    for repeat in np.unique(repeats):
        newest = state.visible_generations(repeat=int(repeat), items=items)
        visible |= (repeats == repeat) & (newest[indices] == generations)
    return visible
