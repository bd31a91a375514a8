"""The pulse of a driver: it shows that it lives, and looks whether another one took the run."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

from evalpipe.runtime.clock import REAL, Clock
from evalpipe.runtime.session import Session
from evalpipe.store.liveness import BEAT_S, Heartbeat
from evalpipe.store.log import Log

log = logging.getLogger(__name__)

LOOK_S = 2.0  # a driver whose run was taken over stops within so long, though it has nothing to commit
JOB_ID_ENV = "RAY_JOB_SUBMISSION_ID"


class Pulse:
    """Beaten by the driver's own loop: a driver that hangs is a dead one."""

    def __init__(self, heartbeat: Heartbeat, run_log: Log, *, clock: Clock) -> None:
        self._heartbeat, self._log, self._clock = heartbeat, run_log, clock
        self._beat_at = self._looked_at = float("-inf")

    def beat(self, *, now: float) -> None:
        """Do what is due. Raises Fenced when another driver owns the run."""
        self._show_life(now)
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            with contextlib.suppress(OSError):
                self._log.refresh()

    @contextlib.contextmanager
    def on_its_own(self) -> Iterator[None]:
        """Beat from a thread while the driver's loop does not turn (compaction may take minutes)."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(1.0):
                self._show_life(self._clock.now())

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._heartbeat.end()

    def _show_life(self, now: float) -> None:
        if now - self._beat_at < BEAT_S:
            return
        self._beat_at = now
        try:
            self._heartbeat.beat()
        except OSError as error:
            log.warning("heartbeat error=%s", error)


@contextlib.contextmanager
def claimed(session: Session, run_log: Log, *, clock: Clock = REAL) -> Iterator[Pulse]:
    """Claim the run and keep saying that we live, until the end. Raises Fenced when somebody else is faster."""
    takeover = session.config.run.takeover
    epoch = run_log.claim(session.spec.sha256, after=None if takeover else session.state.epoch)
    job = os.environ.get(JOB_ID_ENV, "")
    heartbeat = Heartbeat(session.store, epoch, job=job, version=lambda: run_log.state.version)
    pulse = Pulse(heartbeat, run_log, clock=clock)
    pulse.beat(now=clock.now())
    try:
        yield pulse
    finally:
        pulse.end()
