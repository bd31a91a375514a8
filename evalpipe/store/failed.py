"""Which results are failures, so that they may be tried again under a new generation."""

from __future__ import annotations

from collections import Counter

import pyarrow.compute as pc

from evalpipe.errors import ConfigError
from evalpipe.records import Key, Status
from evalpipe.store.objects import ObjectStore
from evalpipe.store.rows import read_results
from evalpipe.store.state import LogState

EVERY = "all"


def failed_keys(store: ObjectStore, state: LogState, *, kind: str = EVERY) -> list[Key]:
    """Return the next generation's key of each result that users see as failed. kind: of the failure, or "all".

    Raises ConfigError when no failure is of that kind but others are; StateError for a damaged file.
    """
    keys: list[Key] = []
    kinds = Counter[str]()
    for table in read_results(store, state):
        failed = table.filter(pc.equal(table["status"], Status.FAILED.value))
        columns = [failed[name].to_pylist() for name in ("item_index", "repeat", "generation", "error_kind")]
        for index, repeat, generation, found in zip(*columns, strict=True):
            kinds[found] += 1
            if kind in (EVERY, found):
                keys.append(Key(index, repeat, generation + 1))
    if kinds and not keys:
        known = ", ".join(f"{name} ({count})" for name, count in sorted(kinds.items()))
        raise ConfigError(f"no item failed with {kind!r}; failures of this run: {known}")
    return keys
