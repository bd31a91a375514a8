"""Which item kills its workers? What a worker held when it died is suspect; what keeps dying is tried apart. Pure.

A death says nothing about one item among a hundred. Items that two deaths have in common go out in small groups, those
of three deaths one by one; who is then alone with a death is set aside. A process killed from outside convicts nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from evalpipe.records import Key

APART_AFTER = 2  # deaths: from then on an item goes out in a small group
#: deaths of an item -> how many such items one worker may hold
GROUPS = {2: 8}
ALONE = 1  # of three and more deaths


class Suspects:
    """Counts deaths by item; an item that came through is forgotten."""

    def __init__(self) -> None:
        self._deaths: dict[Key, int] = {}

    def is_apart(self, key: Key) -> bool:
        """Say whether the item may only go out in a small group."""
        return self._deaths.get(key, 0) >= APART_AFTER

    def can_join(self, key: Key, held: Iterable[Key]) -> bool:
        """Say whether a worker that holds `held` may be given the item too."""
        group = [key, *(other for other in held if self.is_apart(other))]
        return len(group) <= min(GROUPS.get(self._deaths.get(member, 0), ALONE) for member in group)

    def on_death(self, held: Collection[Key]) -> list[Key]:
        """Count a worker's death for what it held; return the item that is found guilty, if one is."""
        apart = [key for key in held if self.is_apart(key)]
        for key in held:
            self._deaths[key] = self._deaths.get(key, 0) + 1
        return apart if len(apart) == 1 else []

    def clear(self, keys: Iterable[Key]) -> None:
        """Forget items that have a result."""
        if self._deaths:
            for key in keys:
                self._deaths.pop(key, None)
