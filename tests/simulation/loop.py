"""A worker's asyncio loop in virtual time: it runs until nothing is ready, then tells when it wants to go on.

The loop never blocks, so it needs no thread: each `pump` is one event of the scheduler. What the worker hands to a
thread (encoding and writing a file) becomes a strand, so that other things happen in between and a crash may cut it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from simulation.scheduler import Process, Scheduler, Strand

CANCELS = 20  # rounds of cancelling: a task may need more than one


class _IdleSelector(selectors.BaseSelector):
    """Watches nothing. Asked to wait, it stops the loop and remembers for how long."""

    def __init__(self) -> None:
        self.on_idle: Callable[[float | None], None] = lambda timeout: None
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return self._keys[fd]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.on_idle(timeout)
        return []

    def get_map(self) -> dict[int, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop of one process."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process
        selector = _IdleSelector()
        selector.on_idle = self._on_idle
        super().__init__(selector)
        self._due_at: float | None = None
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._scheduler.now

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine and run until nothing is ready."""
        self.create_task(work)
        self.pump()

    def pump(self) -> None:
        """Run what is ready; come back when the next timer is due."""
        if self._process.is_alive and not self.is_closed():
            self.run_forever()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run it in a strand; the loop goes on meanwhile."""
        future = self.create_future()

        def work() -> None:
            try:
                settle = partial(future.set_result, func(*args))
            except Exception as error:
                settle = partial(future.set_exception, error)
            self._settle(settle, future)

        Strand(self._scheduler, self._process, work)
        return future

    def bury(self) -> None:
        """End every task of a dead process; whatever they try, the world does not hear of it."""
        if self.is_closed():
            return
        for _ in range(CANCELS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_forever()
        self.close()

    def _settle(self, settle: Callable[[], None], future: asyncio.Future[Any]) -> None:
        self.call_soon(lambda: None if future.done() else settle())
        self._scheduler.after(0.0, self.pump, process=self._process)

    def _on_idle(self, timeout: float | None) -> None:
        self.stop()
        if timeout is not None and self._process.is_alive:
            due_at = self._scheduler.now + timeout
            if self._due_at is None or self._due_at <= self._scheduler.now or due_at < self._due_at:
                self._due_at = due_at
                self._scheduler.after(timeout, self.pump, process=self._process)
