"""From an open session to an ended run: Ray, the claim on the log, the fleet, the driver, and the parts at the end."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from evalpipe.runtime import fleet as ray_fleet
from evalpipe.runtime.committer import Committer
from evalpipe.runtime.driver import Driver, Outcome
from evalpipe.runtime.fleet import Fleet
from evalpipe.runtime.progress import Progress
from evalpipe.runtime.recorder import Recorder
from evalpipe.runtime.session import Session, max_limit
from evalpipe.runtime.signals import StopSignals
from evalpipe.runtime.silence import await_silence
from evalpipe.store.compact import FOLDER as PARTS
from evalpipe.store.compact import compact
from evalpipe.store.liveness import BEAT_S, Heartbeat
from evalpipe.store.log import Log
from evalpipe.store.rows import result_files
from evalpipe.store.state import LogState

log = logging.getLogger(__name__)

ITEMS_PER_WORKER = 32  # a worker process costs seconds and 200 MB; fewer items are not worth another one
JOB_ID_ENV = "RAY_JOB_SUBMISSION_ID"


def launch(session: Session, *, show: Callable[[Progress], None], say: Callable[[str], None]) -> Outcome:
    """Do what the session owes. say: told one line at a time what is being waited for.

    Raises Fenced when another driver took this run, ConfigError when there is no Ray where one was named.
    """
    assert session.ray is not None, "a session with work left has begun to start Ray"
    session.ray.result()
    run_log = Log(session.store)
    with StopSignals() as signals, _pulse(session, run_log) as pulse:
        committer = Committer(session.store, run_log)
        committer.adopt()
        recorder = Recorder(session.store, run_log)
        outcome = _drive(session, committer, recorder, pulse, signals, show, say)
        with pulse.on_its_own():
            recorder.flush()
            compact(session.store, run_log)
    return outcome


def needs_compaction(state: LogState) -> bool:
    """Say whether a driver that had done everything died before it made the parts."""
    return any(not file.info.path.startswith(f"{PARTS}/") for file in result_files(state))


def compact_only(session: Session, *, say: Callable[[str], None]) -> None:
    """Make the parts of a run that is complete but for them. Needs no Ray. Raises Fenced."""
    if not session.config.run.takeover:
        await_silence(session.store, session.state.epoch, say=say)
    run_log = Log(session.store)
    with _pulse(session, run_log) as pulse, pulse.on_its_own():
        compact(session.store, run_log)


def worker_count(session: Session, *, cores: int) -> int:
    """Return how many workers: as configured, or one a core, fewer when limit or data need fewer."""
    configured = session.config.run.workers
    if isinstance(configured, int):
        return configured
    owed = session.expected - session.done
    return max(min(cores, max_limit(session.config.control), -(-owed // ITEMS_PER_WORKER)), 1)


def _drive(
    session: Session,
    committer: Committer,
    recorder: Recorder,
    pulse: _Pulse,
    signals: StopSignals,
    show: Callable[[Progress], None],
    say: Callable[[str], None],
) -> Outcome:
    workers = worker_count(session, cores=ray_fleet.cores())
    fleet = Fleet(session.config.control, workers=workers)
    try:
        return Driver(
            session,
            fleet=fleet,
            committer=committer,
            recorder=recorder,
            pulse=pulse,
            signals=signals,
            workers=workers,
            show=show,
            say=say,
        ).run()
    finally:
        fleet.stop()


class _Pulse:
    """The heartbeat, beaten by the driver's own loop: a driver that hangs is a dead one."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._beat_at = float("-inf")

    def beat(self, *, now: float) -> None:
        if now - self._beat_at < BEAT_S:
            return
        self._beat_at = now
        try:
            self._heartbeat.beat()
        except OSError as error:
            log.warning("heartbeat error=%s", error)

    @contextlib.contextmanager
    def on_its_own(self) -> Iterator[None]:
        """Beat from a thread while the driver's loop does not turn (compaction may take minutes)."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(1.0):
                self.beat(now=time.monotonic())

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


@contextlib.contextmanager
def _pulse(session: Session, run_log: Log) -> Iterator[_Pulse]:
    """Claim the run and keep saying that we live, until the end."""
    takeover = session.config.run.takeover
    epoch = run_log.claim(session.spec.sha256, after=None if takeover else session.state.epoch)
    pulse = _Pulse(Heartbeat(session.store, epoch, job=os.environ.get(JOB_ID_ENV, "")))
    pulse.beat(now=time.monotonic())
    try:
        yield pulse
    finally:
        pulse.end()
