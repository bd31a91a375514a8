"""Who does what: owed items handed out in small shards, taken back when their worker dies. Pure, bounded memory.

Only what is out is remembered item by item; the rest is a position in the agenda and the log's own done set.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from evalpipe.records import Example, Key, Shard, WorkItem
from evalpipe.runtime.agenda import Agenda
from evalpipe.runtime.suspects import Suspects

CANARIES = 8  # the first items go alone: a wrong key or model costs eight requests, not a thousand


class Dispenser:
    """Hand out each key of the agenda once; again only when it came back.

    is_done: keys that got a result meanwhile (a dead worker's file was found). load: the example of an index.
    """

    def __init__(
        self,
        agenda: Agenda,
        *,
        is_done: Callable[[Key], bool],
        load: Callable[[int], Example],
        shard_size: int = 32,
    ) -> None:
        self._is_done, self._load, self._shard_size = is_done, load, shard_size
        self._fresh = iter(agenda.keys)
        self._left = agenda.count  # not handed out; those that came back included
        self._returned: deque[Key] = deque()
        self._apart: deque[Key] = deque()
        self._suspects = Suspects()
        self._holder: dict[Key, str] = {}
        self._ids = itertools.count(1)
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

    @property
    def is_done(self) -> bool:
        return self._left + len(self._holder) == 0

    def open(self) -> None:
        """Let more than the first few out: one of them was answered."""
        self._is_open = True

    def take(self, worker: str, want: int, *, workers: int = 1) -> list[Shard]:
        """Hand out about `want` items. Near the end shards get smaller, so that no worker sits on the last ones."""
        if not self._is_open:
            want = min(want, CANARIES - self._handed_out)
        if self._suspects.are_any_alone and any(map(self._suspects.is_alone, self._held(worker))):
            return []
        shards = []
        while want > 0:
            size = min(self._shard_size, want, max(self._left // (2 * workers), 1))
            keys = self._next_keys(worker, size)
            if not keys:
                break
            shards.append(Shard(next(self._ids), [self.item(key) for key in keys]))
            want -= len(keys)
        return shards

    def settle(self, keys: Iterable[Key]) -> None:
        """Forget items whose result is in the log."""
        keys = list(keys)
        came_through = [key for key in keys if self._holder.pop(key, None) is not None]
        if not self._is_open:  # a dead worker's file told of them: as many others may go first now
            self._handed_out -= len(came_through)
        self._suspects.clear(keys)

    def take_back(self, worker: str, *, is_suspect: bool) -> list[Key]:
        """Take back all that a lost worker had, but for an item that kills its workers: that one is returned.

        is_suspect: the process died or hung, and what it had may be the reason.
        """
        held = self._held(worker)
        guilty = self._suspects.on_death(held) if is_suspect else []
        self.release((key for key in held if key not in guilty), worker=worker)
        return guilty

    def release(self, keys: Iterable[Key], *, worker: str) -> int:
        """Take back items that this worker has and will not do, told as often as it likes; returns how many."""
        returned = [key for key in keys if self._holder.get(key) == worker]
        for key in returned:
            del self._holder[key]
            self._put_back(key)
        self._left += len(returned)
        if not self._is_open:
            self._handed_out -= len(returned)
        return len(returned)

    def item(self, key: Key) -> WorkItem:
        return WorkItem(self._load(key.item_index), key.repeat, key.generation)

    def _held(self, worker: str) -> list[Key]:
        return [key for key, holder in self._holder.items() if holder == worker]

    def _next_keys(self, worker: str, count: int) -> Sequence[Key]:
        keys = list(itertools.islice(self._candidates(worker), count))
        self._handed_out += len(keys)
        return keys

    def _candidates(self, worker: str) -> Iterator[Key]:
        """Yield what this worker may be given, noting each as out; items with a result meanwhile are passed over."""
        for source in (self._apart_for(worker), _drain(self._returned), self._fresh):
            for key in source:
                self._left -= 1
                if not self._is_done(key):
                    self._holder[key] = worker
                    yield key
                    if self._suspects.is_alone(key):
                        return

    def _apart_for(self, worker: str) -> Iterator[Key]:
        while self._apart and self._suspects.can_join(self._apart[0], self._held(worker)):
            yield self._apart.popleft()

    def _put_back(self, key: Key) -> None:
        """Those that must go alone wait behind the others that are apart, which need no empty worker."""
        if self._suspects.is_alone(key):
            self._apart.append(key)
        elif self._suspects.is_apart(key):
            self._apart.appendleft(key)
        else:
            self._returned.append(key)


def _drain(queue: deque[Key]) -> Iterator[Key]:
    while queue:
        yield queue.popleft()
