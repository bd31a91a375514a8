"""What a driver has to do: the keys it owes, in order, and how many. From the log's state; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalpipe.records import Key
from evalpipe.store.keys import ANSWERED, FAILED, OWED
from evalpipe.store.state import LogState

CHUNK = 4096  # order is read in pieces: ten million indices as Python numbers would be 400 MB


@dataclass(frozen=True, slots=True)
class Agenda:
    """count: how many keys there are. keys: to be read once."""

    keys: Iterable[Key]
    count: int


def owed(state: LogState, *, order: NDArray[np.int64], repeats: int) -> Agenda:
    """Return what has no result of any generation. order: int64[items], item indices in the order to run."""
    items = len(order)
    is_owed = np.stack([state.outcomes(repeat=repeat, items=items) == OWED for repeat in range(repeats)])
    return Agenda(_in_order(is_owed, order), int(np.count_nonzero(is_owed)))


def visible_counts(state: LogState, *, items: int, repeats: int) -> tuple[int, int]:
    """Return how many results users see as answered and as failed, whatever their generations."""
    codes = [state.outcomes(repeat=repeat, items=items) for repeat in range(repeats)]
    answered, failed = (sum(int(np.count_nonzero(c == code)) for c in codes) for code in (ANSWERED, FAILED))
    return answered, failed


def again(keys: Sequence[Key], *, order: NDArray[np.int64]) -> Agenda:
    """Return the given keys (a new generation of failed items) in the order to run."""
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return Agenda(sorted(keys, key=lambda key: (places[key.item_index], key.repeat)), len(keys))


def _in_order(is_owed: NDArray[np.bool_], order: NDArray[np.int64]) -> Iterator[Key]:
    """Yield keys of generation 0. is_owed: bool[repeats, items], by item index."""
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        for index, repeat in np.argwhere(is_owed[:, chunk].T).tolist():
            yield Key(int(chunk[index]), repeat)
