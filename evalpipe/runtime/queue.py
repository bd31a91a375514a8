"""A worker's items: those to send, those that wait for another try. No clock, no I/O."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from evalpipe.records import Key, Request, WorkItem


@dataclass(slots=True)
class Task:
    """One item at this worker. attempts: tries that counted; tries: all of them, those that were paused included.

    ready_at: monotonic seconds from which it may be sent; wait_s, retry_wait_s: waiting for a permit, for a retry.
    """

    item: WorkItem
    ready_at: float
    request: Request | None = None
    attempts: int = 0
    tries: int = 0
    wait_s: float = 0.0
    retry_wait_s: float = 0.0

    @property
    def key(self) -> Key:
        return self.item.key


class TaskQueue:
    """First in, first out; an item whose retry is due goes before new ones."""

    def __init__(self) -> None:
        self._ready: deque[Task] = deque()
        self._later: list[tuple[float, int, Task]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    def add(self, tasks: Iterable[Task]) -> None:
        self._ready.extend(tasks)

    def again(self, task: Task, *, at: float) -> None:
        """Put a task back, to be sent not before `at`."""
        heapq.heappush(self._later, (at, next(self._order), task))

    def ready(self, *, now: float) -> int:
        """Count what could be sent now, moving retries that are due to the front."""
        due: list[Task] = []
        while self._later and self._later[0][0] <= now:
            due.append(heapq.heappop(self._later)[2])
        self._ready.extendleft(reversed(due))
        return len(self._ready)

    def next_due(self) -> float | None:
        """Instant of the next retry, None when none waits."""
        return self._later[0][0] if self._later else None

    def pop(self) -> Task:
        return self._ready.popleft()

    def drop_all(self) -> list[Key]:
        """Empty the queue; return the keys, which go back to the driver."""
        keys = [task.key for task in self._ready] + [entry[2].key for entry in self._later]
        self._ready.clear()
        self._later.clear()
        return keys
