"""Virtual time and one baton: at any instant a single piece of code runs, and one seeded queue says which.

A `Process` lives, may be paused (everything meant for it waits) and dies (nothing of it runs again). Synchronous code
of a process runs in a `Strand`, a thread that works only while it holds the baton; everything else is an event.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import threading
from collections.abc import Callable

PATIENCE_S = 60.0  # real seconds that one step may take: a strand that waits for a real lock would hang for ever


class Killed(BaseException):
    """The process is gone: nothing after this has any effect outside of it."""


class Process:
    """A simulated process. on_death: each called once, at the instant of death."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name, self._scheduler = name, scheduler
        self.died_at: float | None = None  # None: it lives
        self.paused_until = 0.0
        self.lost_since: float | None = None  # when it was last paused or cut off
        self.strands: list[Strand] = []
        self.on_death: dict[object, Callable[[], None]] = {}

    def kill(self) -> None:
        if self.is_alive:
            self._scheduler.note(self.name, "dies")
            self.died_at = self._scheduler.now
            self._scheduler.bury(self)
            for callback in list(self.on_death.values()):
                callback()
            self.on_death.clear()

    def pause(self, seconds: float) -> None:
        self._scheduler.note(self.name, f"stands still for {seconds:.1f} s")
        self.paused_until = max(self.paused_until, self._scheduler.now + seconds)
        self.lost_since = self._scheduler.now

    @property
    def is_alive(self) -> bool:
        return self.died_at is None

    @property
    def is_paused(self) -> bool:
        return self.paused_until > self._scheduler.now

    def check(self) -> None:
        """Raise Killed when the process is dead."""
        if not self.is_alive:
            raise Killed(self.name)


class Strand:
    """A thread of a process that runs only while it has the baton."""

    def __init__(self, scheduler: Scheduler, process: Process, target: Callable[[], None]) -> None:
        self._scheduler, self.process, self._target = scheduler, process, target
        self._mine, self._back = threading.Lock(), threading.Lock()  # held: the other side has the baton
        self._mine.acquire()
        self._back.acquire()
        self._ticket = 0
        self._is_waiting = False
        self.is_over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=process.name, daemon=True)
        process.strands.append(self)
        scheduler.after(0.0, self._begin, process=process)

    @property
    def is_here(self) -> bool:
        """Say whether the caller runs in this strand, and not in a thread that the product started."""
        return threading.current_thread() is self._thread

    def sleep(self, seconds: float, *, can_be_woken: bool = False) -> None:
        """Give the baton back for so long. Called from inside. Raises Killed when the process died meanwhile."""
        self.process.check()
        self._is_waiting = can_be_woken
        self._ticket += 1
        ticket = self._ticket
        self._scheduler.after(seconds, lambda: self._wake(ticket), process=self.process)
        self._back.release()
        self._mine.acquire()
        self._is_waiting = False
        self.process.check()

    def wake(self) -> None:
        """End a sleep that may be woken."""
        if self._is_waiting:
            self._is_waiting = False
            ticket = self._ticket
            self._scheduler.after(0.0, lambda: self._wake(ticket), process=self.process)

    def unwind(self) -> None:
        """Let the code of a dead process run out: each of its calls to the world raises Killed."""
        if not self.is_over and self._thread.is_alive():
            self._ticket += 1
            self._step()

    def _begin(self) -> None:
        self._scheduler.current = self
        self._thread.start()
        self._wait()

    def _wake(self, ticket: int) -> None:
        if ticket == self._ticket and not self.is_over:
            self._ticket += 1
            self._step()

    def _step(self) -> None:
        self._scheduler.current = self
        self._mine.release()
        self._wait()

    def _wait(self) -> None:
        if not self._back.acquire(timeout=PATIENCE_S):
            raise AssertionError(f"{self.process.name} keeps the baton: it waits for something real")
        self._scheduler.current = None
        if self.is_over:
            self._thread.join()
            if self.error is not None:
                raise self.error

    def _main(self) -> None:
        try:
            self._target()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            self._back.release()


class Scheduler:
    """What happens when. Events of a dead process are dropped, those of a paused one wait for it."""

    def __init__(self, *, trace: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.current: Strand | None = None
        self._events: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._order = itertools.count()
        self._dead: list[Process] = []
        self._trace = trace
        self._digest = hashlib.sha256()

    def after(self, seconds: float, action: Callable[[], None], *, process: Process | None = None) -> None:
        """Do it in so many seconds, if the process still lives then."""
        heapq.heappush(self._events, (self.now + max(seconds, 0.0), next(self._order), process, action))

    def run(self, *, until: Callable[[], bool], horizon_s: float) -> bool:
        """Work through the events; True as soon as `until` holds, False at the horizon or when nothing is left."""
        while not until():
            if not self._events or self._events[0][0] > horizon_s:
                return False
            at, _, process, action = heapq.heappop(self._events)
            self.now = max(self.now, at)
            if process is not None and not process.is_alive:
                continue
            if process is not None and process.is_paused:
                self.after(process.paused_until - self.now, action, process=process)
                continue
            action()
            self.reap()
        return True

    def bury(self, process: Process) -> None:
        self._dead.append(process)

    def reap(self) -> None:
        """Let the strands of the dead run out; not from inside a strand."""
        while self._dead:
            for strand in self._dead.pop().strands:
                strand.unwind()

    def sleep(self, seconds: float) -> None:
        """Sleep in whatever strand runs now."""
        assert self.current is not None, "only a strand can sleep"
        self.current.sleep(seconds)

    def note(self, who: str, what: str) -> None:
        """Add one line to the trace."""
        line = f"{self.now:9.3f} {who:<4} {what}"
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    @property
    def digest(self) -> str:
        """Identity of everything that happened so far."""
        return self._digest.hexdigest()
