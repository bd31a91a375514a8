"""A worker's items: those to send, those that wait for another try. No clock, no I/O."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from evalpipe.records import Key, Request, WorkItem


@dataclass(slots=True)
class Task:
    """One item at this worker. attempts: tries that counted; tries: all of them, those that were paused included.

    failures: of those that counted, by kind. is_retry: the next try is one that the retry budget pays for.
    ready_at: monotonic seconds from which it may be sent; wait_s, retry_wait_s: waiting for a permit, for a retry.
    """

    item: WorkItem
    ready_at: float
    request: Request | None = None
    attempts: int = 0
    tries: int = 0
    wait_s: float = 0.0
    retry_wait_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    is_retry: bool = False

    @property
    def key(self) -> Key:
        return self.item.key


class TaskQueue:
    """First in, first out; an item whose next try is due goes before new ones.

    `retries`: how many of the tries that the retry budget pays for may go now. The others wait, and new items go.
    """

    def __init__(self) -> None:
        self._ready: deque[Task] = deque()
        self._retries: deque[Task] = deque()
        self._later: list[tuple[float, int, Task]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._ready) + len(self._retries) + len(self._later)

    def add(self, tasks: Iterable[Task]) -> None:
        self._ready.extend(tasks)

    def again(self, task: Task, *, at: float) -> None:
        """Put a task back, to be sent not before `at`."""
        heapq.heappush(self._later, (at, next(self._order), task))

    def ready(self, *, now: float, retries: int) -> int:
        """Count what could be sent now."""
        self._collect_due(now)
        return len(self._ready) + min(len(self._retries), retries)

    def next_due(self) -> float | None:
        """Instant of the next try of an item that waits for one, None when none does."""
        return self._later[0][0] if self._later else None

    def pop(self, *, retries: int) -> Task:
        """Take what is next of that which `ready` counted. Raises IndexError when that was nothing."""
        return self._retries.popleft() if self._retries and retries > 0 else self._ready.popleft()

    def drop_all(self) -> list[Key]:
        """Empty the queue; return the keys, which go back to the driver."""
        keys = [task.key for task in (*self._retries, *self._ready, *(entry[2] for entry in self._later))]
        self._ready.clear()
        self._retries.clear()
        self._later.clear()
        return keys

    def _collect_due(self, now: float) -> None:
        due: list[Task] = []
        while self._later and self._later[0][0] <= now:
            due.append(heapq.heappop(self._later)[2])
        self._retries.extend(task for task in due if task.is_retry)
        self._ready.extendleft(task for task in reversed(due) if not task.is_retry)
