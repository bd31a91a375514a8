"""Who does what: owed items handed out in small shards, taken back when their worker dies. Pure, bounded memory.

Only what is out is remembered item by item; the rest is a position in the order and the log's own done set.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from evalpipe.records import Example, Key, Shard, WorkItem

CANARIES = 8  # the first items go alone: a wrong key or model costs eight requests, not a thousand


class Dispenser:
    """Hand out each owed key once; again only when it came back.

    order: item indices in the order to run. is_done: keys the log has already. load: the example of an index.
    """

    def __init__(
        self,
        order: Sequence[int],
        *,
        repeats: int,
        is_done: Callable[[Key], bool],
        load: Callable[[int], Example],
        owed: int,
        shard_size: int = 32,
        generation: int = 0,
    ) -> None:
        self._load, self._shard_size = load, shard_size
        self._fresh = self._owed_keys(order, repeats, generation, is_done)
        self._returned: deque[Key] = deque()
        self._holder: dict[Key, str] = {}
        self._ids = itertools.count(1)
        self._left = owed  # not handed out; those that came back included
        self._handed_out = 0
        self._is_open = False

    @property
    def left(self) -> int:
        """Owed items that no worker has."""
        return self._left

    @property
    def out(self) -> int:
        """Items that workers have and the log has not."""
        return len(self._holder)

    def open(self) -> None:
        """Let more than the first few out: one of them was answered."""
        self._is_open = True

    def take(self, worker: str, want: int, *, workers: int = 1) -> list[Shard]:
        """Hand out about `want` items. Near the end shards get smaller, so that no worker sits on the last ones."""
        if not self._is_open:
            want = min(want, CANARIES - self._handed_out)
        shards = []
        while want > 0:
            size = min(self._shard_size, want, max(self._left // (2 * workers), 1))
            keys = self._next_keys(size)
            if not keys:
                break
            self._note_out(worker, keys)
            shards.append(Shard(next(self._ids), [self._item(key) for key in keys]))
            want -= len(keys)
        return shards

    def settle(self, keys: Iterable[Key]) -> None:
        """Forget items whose result is in the log."""
        for key in keys:
            self._holder.pop(key, None)

    def give_back(self, worker: str) -> int:
        """Take back all that a dead worker had; returns how many."""
        return self.release(key for key, holder in self._holder.items() if holder == worker)

    def release(self, keys: Iterable[Key]) -> int:
        """Take back items that their worker will not do; returns how many."""
        returned = [key for key in keys if key in self._holder]
        for key in returned:
            del self._holder[key]
        self._returned.extend(returned)
        self._left += len(returned)
        if not self._is_open:
            self._handed_out -= len(returned)
        return len(returned)

    def _note_out(self, worker: str, keys: Sequence[Key]) -> None:
        self._holder.update((key, worker) for key in keys)
        self._left -= len(keys)
        self._handed_out += len(keys)

    def _next_keys(self, count: int) -> list[Key]:
        keys = [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
        keys.extend(itertools.islice(self._fresh, count - len(keys)))
        return keys

    def _item(self, key: Key) -> WorkItem:
        return WorkItem(self._load(key.item_index), key.repeat, key.generation)

    @staticmethod
    def _owed_keys(
        order: Sequence[int], repeats: int, generation: int, is_done: Callable[[Key], bool]
    ) -> Iterator[Key]:
        for index in order:
            for repeat in range(repeats):
                key = Key(int(index), repeat, generation)
                if not is_done(key):
                    yield key
