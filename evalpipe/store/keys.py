"""Sets of result keys, compact enough for ten million: ranges where they are stored, one byte an item where looked up.

A group is one (repeat, generation); inside it items are dense numbers from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from evalpipe.errors import StateError
from evalpipe.records import Key

Group = tuple[int, int]
Indices = NDArray[np.int64]
Codes = NDArray[np.uint8]

OWED, ANSWERED, FAILED = 0, 1, 2  # what a DoneSet says of a key


class KeySet:
    """An immutable set of keys: per group, sorted inclusive ranges of item indices, int64[n, 2]."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Mapping[Group, Indices] | None = None) -> None:
        """ranges: sorted, disjoint, not adjacent; the class methods make them so."""
        self._ranges = dict(sorted((ranges or {}).items()))

    @classmethod
    def from_columns(cls, item_index: Indices, repeat: Indices, generation: Indices) -> KeySet:
        """Collect the keys of a table's rows, three arrays int64[n]. Raises StateError when a key is there twice."""
        groups: dict[Group, Indices] = {}
        for group in np.unique(np.stack([repeat, generation], axis=1), axis=0):
            rows = (repeat == group[0]) & (generation == group[1])
            groups[int(group[0]), int(group[1])] = np.sort(item_index[rows])
        return cls.from_groups(groups)

    @classmethod
    def from_keys(cls, keys: Iterable[Key]) -> KeySet:
        rows = np.array(list(keys), dtype=np.int64).reshape(-1, 3)
        return cls.from_columns(rows[:, 0], rows[:, 1], rows[:, 2])

    @classmethod
    def from_groups(cls, groups: Mapping[Group, Indices]) -> KeySet:
        """Build from sorted item indices per group. Raises StateError when one is negative or there twice."""
        return cls({group: _to_ranges(indices) for group, indices in groups.items() if len(indices)})

    def groups(self) -> Iterator[tuple[Group, Indices]]:
        """Yield each group with its item indices, sorted, int64[n]."""
        for group, ranges in self._ranges.items():
            yield group, _to_indices(ranges)

    def union(self, other: KeySet) -> KeySet:
        merged = dict(self.groups())
        for group, indices in other.groups():
            merged[group] = np.union1d(merged[group], indices) if group in merged else indices
        return KeySet.from_groups(merged)

    def minus(self, other: KeySet) -> KeySet:
        if not other:
            return self
        taken = dict(other.groups())
        return KeySet.from_groups(
            {g: np.setdiff1d(indices, taken[g]) if g in taken else indices for g, indices in self.groups()}
        )

    def to_json(self) -> dict[str, list[list[int]]]:
        """Return {"repeat/generation": [[first, last], ..]}."""
        return {f"{repeat}/{generation}": ranges.tolist() for (repeat, generation), ranges in self._ranges.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, list[list[int]]]) -> KeySet:
        ranges: dict[Group, Indices] = {}
        for name, pairs in data.items():
            repeat, _, generation = name.partition("/")
            ranges[int(repeat), int(generation)] = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return cls(ranges)

    def __len__(self) -> int:
        return sum(int((ranges[:, 1] - ranges[:, 0] + 1).sum()) for ranges in self._ranges.values())

    def __iter__(self) -> Iterator[Key]:
        for (repeat, generation), indices in self.groups():
            yield from (Key(index, repeat, generation) for index in indices.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # compared by value, never a key itself

    def __repr__(self) -> str:
        return f"KeySet({self.to_json()})"


class DoneSet:
    """Which keys have a result, and of what sort. One byte an item and group: 10 MB for ten million items."""

    def __init__(self, codes: Mapping[Group, Codes] | None = None) -> None:
        self._codes = dict(codes or {})

    def mark(self, keys: KeySet, code: int) -> KeySet:
        """Give code to those still owed and return the others, which keep what they have: the first one wins."""
        losers: dict[Group, Indices] = {}
        for group, indices in keys.groups():
            codes = self._room_for(group, int(indices[-1]) + 1)
            is_owed = codes[indices] == OWED
            codes[indices[is_owed]] = code
            losers[group] = indices[~is_owed]
        return KeySet.from_groups(losers)

    def release(self, keys: KeySet) -> None:
        """Make keys owed again, so that another file can take them over."""
        for group, indices in keys.groups():
            self._codes[group][indices] = OWED

    def code(self, key: Key) -> int:
        codes = self._codes.get((key.repeat, key.generation))
        return OWED if codes is None or key.item_index >= len(codes) else int(codes[key.item_index])

    def codes(self, group: Group, *, items: int) -> Codes:
        """Return a copy, uint8[items], of the codes of items 0 .. items - 1."""
        known = self._codes.get(group, np.zeros(0, dtype=np.uint8))[:items]
        return np.concatenate([known, np.zeros(items - len(known), dtype=np.uint8)])

    def outcomes(self, *, repeat: int, items: int) -> Codes:
        """Return uint8[items]: an answer of any generation above a failure of any."""
        best = np.zeros(items, dtype=np.uint8)
        for group in self.groups():
            if group[0] == repeat:
                codes = self.codes(group, items=items)
                better = (codes == ANSWERED) | (best == OWED)
                best[better] = codes[better]
        return best

    def groups(self) -> list[Group]:
        return sorted(group for group, codes in self._codes.items() if codes.any())

    def count(self, code: int) -> int:
        return sum(int(np.count_nonzero(codes == code)) for codes in self._codes.values())

    def copy(self) -> DoneSet:
        return DoneSet({group: codes.copy() for group, codes in self._codes.items()})

    def keeps(self, older: DoneSet) -> bool:
        """Say whether every key that had a result has the same one here."""
        for group, codes in older._codes.items():
            now = self.codes(group, items=len(codes))
            if not np.array_equal(now[codes != OWED], codes[codes != OWED]):
                return False
        return True

    def _room_for(self, group: Group, items: int) -> Codes:
        codes = self._codes.get(group, np.zeros(0, dtype=np.uint8))
        if len(codes) < items:
            grown = np.zeros(max(items, 2 * len(codes)), dtype=np.uint8)
            grown[: len(codes)] = codes
            self._codes[group] = codes = grown
        return codes


def _to_ranges(indices: Indices) -> Indices:
    steps = np.diff(indices)
    if len(indices) and (indices[0] < 0 or (steps <= 0).any()):
        raise StateError(f"item indices of one group must be distinct and not negative, got {indices[:20].tolist()} ..")
    breaks = np.flatnonzero(steps != 1)
    firsts = indices[np.concatenate([[0], breaks + 1]).astype(np.int64)]
    lasts = indices[np.concatenate([breaks, [len(indices) - 1]]).astype(np.int64)]
    return np.stack([firsts, lasts], axis=1)


def _to_indices(ranges: Indices) -> Indices:
    lengths = ranges[:, 1] - ranges[:, 0] + 1
    shifts = ranges[:, 0] - (np.cumsum(lengths) - lengths)
    return np.repeat(shifts, lengths) + np.arange(lengths.sum(), dtype=np.int64)
