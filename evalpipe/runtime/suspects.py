"""Which item kills its workers? What a worker held when it died is suspect; what keeps dying is tried apart. Pure.

A death says nothing about one item among a hundred. Items that two deaths have in common go out in small groups, those
of three deaths alone, to a worker that has nothing else; who is then alone with a death is set aside. Processes killed
from outside convict nobody, unless the same item is met by all of four.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from evalpipe.records import Key

APART_AFTER = 2  # deaths: from then on an item goes out in a small group
GROUP = 8
ALONE_AFTER = 3


class Suspects:
    """Counts deaths by item; an item that came through is forgotten."""

    def __init__(self) -> None:
        self._deaths: dict[Key, int] = {}

    @property
    def are_any_alone(self) -> bool:
        return any(map(self.is_alone, self._deaths))

    def is_apart(self, key: Key) -> bool:
        """Say whether the item may only go out in a small group, or alone."""
        return self._deaths.get(key, 0) >= APART_AFTER

    def is_alone(self, key: Key) -> bool:
        """Say whether the item goes to a worker that has nothing else, and gets nothing else."""
        return self._deaths.get(key, 0) >= ALONE_AFTER

    def can_join(self, key: Key, held: Collection[Key]) -> bool:
        """Say whether a worker that holds `held` may be given the item, which is apart, too."""
        if self.is_alone(key):
            return not held
        return sum(map(self.is_apart, held)) < GROUP

    def on_death(self, held: Collection[Key]) -> list[Key]:
        """Count a worker's death for what it held; return the item that is found guilty, if one is."""
        guilty = [key for key in held if len(held) == 1 and self.is_apart(key)]
        for key in held:
            self._deaths[key] = self._deaths.get(key, 0) + 1
        return guilty

    def clear(self, keys: Iterable[Key]) -> None:
        """Forget items that have a result."""
        if self._deaths:
            for key in keys:
                self._deaths.pop(key, None)
