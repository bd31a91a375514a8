"""Sets of result keys, compact enough for ten million: packed where they are kept, one byte an item where looked up.

A group is one (repeat, generation); inside it items are dense numbers from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from evalpipe.errors import StateError
from evalpipe.records import Key
from evalpipe.store.packing import Ranges, pack, unpack

Group = tuple[int, int]
Indices = NDArray[np.int64]
Codes = NDArray[np.uint8]
Spelled = list[list[int]] | str  # [[first, last], ..] where they are few, for people; packed text where they are many

FEW = 16  # ranges that are spelled as pairs

OWED, ANSWERED, FAILED = 0, 1, 2  # what a DoneSet says of a key


class KeySet:
    """An immutable set of keys: per group the ranges of item indices, spelled as in the log and read when asked for."""

    __slots__ = ("_spelled",)

    def __init__(self, spelled: Mapping[Group, Spelled] | None = None) -> None:
        """spelled: made by `_spell`; the class methods do so."""
        self._spelled = dict(sorted((spelled or {}).items()))

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
        return cls({group: _spell(_to_ranges(indices)) for group, indices in groups.items() if len(indices)})

    def groups(self) -> Iterator[tuple[Group, Indices]]:
        """Yield each group with its item indices, sorted, int64[n]. Raises StateError for text that is no set."""
        for group, spelled in self._spelled.items():
            yield group, _to_indices(_read(spelled))

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

    def to_json(self) -> dict[str, Spelled]:
        """Return {"repeat/generation": ranges}."""
        return {f"{repeat}/{generation}": spelled for (repeat, generation), spelled in self._spelled.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Spelled]) -> KeySet:
        """Raises ValueError for names that to_json does not make. Pairs may be many, as in logs of 2026."""
        groups: dict[Group, Spelled] = {}
        for name, spelled in data.items():
            repeat, _, generation = name.partition("/")
            is_plain = isinstance(spelled, str) or len(spelled) <= FEW
            groups[int(repeat), int(generation)] = spelled if is_plain else _spell(_read(spelled))
        return cls(groups)

    def __len__(self) -> int:
        return sum(len(indices) for _, indices in self.groups())

    def __bool__(self) -> bool:
        return bool(self._spelled)

    def __iter__(self) -> Iterator[Key]:
        for (repeat, generation), indices in self.groups():
            yield from (Key(index, repeat, generation) for index in indices.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self._spelled == other._spelled

    __hash__ = None  # type: ignore[assignment]  # compared by value, never a key itself

    def __repr__(self) -> str:
        return f"KeySet({self.to_json()})"


class DoneSet:
    """Which keys have a result, and of what sort. One byte an item and group: 10 MB for ten million items."""

    def __init__(self) -> None:
        self._codes: dict[Group, Codes] = {}
        self._counts = np.zeros(FAILED + 1, dtype=np.int64)  # kept beside: each entry of the log asks for them

    def mark(self, keys: KeySet, code: int) -> KeySet:
        """Give code to those still owed and return the others, which keep what they have: the first one wins."""
        losers: dict[Group, Indices] = {}
        for group, indices in keys.groups():
            codes = self._room_for(group, int(indices[-1]) + 1)
            is_owed = codes[indices] == OWED
            codes[indices[is_owed]] = code
            self._counts[code] += np.count_nonzero(is_owed)
            losers[group] = indices[~is_owed]
        return KeySet.from_groups(losers)

    def release(self, keys: KeySet) -> None:
        """Make keys owed again, so that another file can take them over."""
        for group, indices in keys.groups():
            self._counts -= np.bincount(self._codes[group][indices], minlength=len(self._counts))
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
        """Return how many keys are ANSWERED, or FAILED."""
        return int(self._counts[code])

    def copy(self) -> DoneSet:
        twin = DoneSet()
        twin._codes = {group: codes.copy() for group, codes in self._codes.items()}
        twin._counts = self._counts.copy()
        return twin

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


def _spell(ranges: Ranges) -> Spelled:
    pairs: list[list[int]] = ranges.tolist() if len(ranges) <= FEW else []
    return pairs or pack(ranges)


def _read(spelled: Spelled) -> Ranges:
    return unpack(spelled) if isinstance(spelled, str) else np.array(spelled, dtype=np.int64).reshape(-1, 2)


def _to_ranges(indices: Indices) -> Ranges:
    steps = np.diff(indices)
    if len(indices) and (indices[0] < 0 or (steps <= 0).any()):
        raise StateError(f"item indices of one group must be distinct and not negative, got {indices[:20].tolist()} ..")
    breaks = np.flatnonzero(steps != 1)
    firsts = indices[np.concatenate([[0], breaks + 1]).astype(np.int64)]
    lasts = indices[np.concatenate([breaks, [len(indices) - 1]]).astype(np.int64)]
    return np.stack([firsts, lasts], axis=1)


def _to_indices(ranges: Ranges) -> Indices:
    lengths = ranges[:, 1] - ranges[:, 0] + 1
    shifts = ranges[:, 0] - (np.cumsum(lengths) - lengths)
    return np.repeat(shifts, lengths) + np.arange(lengths.sum(), dtype=np.int64)
