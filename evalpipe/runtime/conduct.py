"""From an open session to an ended run: the claim on the log, the driver, and the parts at the end. No Ray here."""

from __future__ import annotations

from collections.abc import Callable

from evalpipe.control.warm import Settled
from evalpipe.runtime.clock import REAL, Clock
from evalpipe.runtime.committer import Committer
from evalpipe.runtime.driver import Driver, Outcome
from evalpipe.runtime.messages import Fleet
from evalpipe.runtime.progress import Progress
from evalpipe.runtime.pulse import claimed
from evalpipe.runtime.recorder import Recorder
from evalpipe.runtime.session import Session, max_limit
from evalpipe.runtime.signals import StopSignals
from evalpipe.runtime.silence import await_silence
from evalpipe.runtime.warmth import remember, settled_before
from evalpipe.store.compact import FOLDER as PARTS
from evalpipe.store.compact import compact
from evalpipe.store.log import Log
from evalpipe.store.objects import ObjectStore
from evalpipe.store.rows import result_files
from evalpipe.store.state import LogState

ITEMS_PER_WORKER = 32  # a worker process costs seconds and 200 MB; fewer items are not worth another one


def conduct(
    session: Session,
    *,
    make_fleet: Callable[[int, Settled | None], Fleet],
    workers: int,
    signals: StopSignals,
    show: Callable[[Progress], None],
    say: Callable[[str], None],
    run_log: Log | None = None,
    shelf: ObjectStore | None = None,
    clock: Clock = REAL,
) -> Outcome:
    """Claim the run, take in what dead drivers left, do the rest, make the parts.

    make_fleet: called after the claim with our epoch and where an earlier run settled. run_log: ours, not yet claimed;
    None for a new one. shelf: the folder of the runs, where it is kept at which limit they settled; None: nowhere.
    Raises Fenced when another driver took this run.
    """
    run_log = run_log or Log(session.store)
    with claimed(session, run_log, clock=clock) as pulse:
        committer = Committer(session.store, run_log, clock=clock)
        committer.adopt()
        recorder = Recorder(session.store, run_log, wall=clock.wall)
        fleet = make_fleet(committer.epoch, settled_before(session, run_log.state, shelf))
        try:
            outcome = Driver(
                session,
                fleet=fleet,
                committer=committer,
                recorder=recorder,
                pulse=pulse,
                signals=signals,
                workers=workers,
                show=show,
                say=say,
                clock=clock,
            ).run()
        finally:
            fleet.stop()
        with pulse.on_its_own():
            recorder.flush()
            if shelf is not None:
                remember(session, recorder.settling.level, shelf)
            compact(session.store, run_log)
    return outcome


def needs_compaction(store: ObjectStore, state: LogState) -> bool:
    """Say whether a driver died before it made the parts, or left one that the log does not name."""
    is_unmerged = any(not file.info.path.startswith(f"{PARTS}/") for file in result_files(state))
    return is_unmerged or any(path not in state.files for path in store.list(f"{PARTS}/"))


def compact_only(
    session: Session, *, say: Callable[[str], None], run_log: Log | None = None, clock: Clock = REAL
) -> None:
    """Make the parts of a run that is complete but for them. Raises Fenced."""
    if not session.config.run.takeover:
        await_silence(session.store, session.state.epoch, say=say, clock=clock)
    run_log = run_log or Log(session.store)
    with claimed(session, run_log, clock=clock) as pulse, pulse.on_its_own():
        compact(session.store, run_log)


def worker_count(session: Session, *, cores: int) -> int:
    """Return how many workers: as configured, or one a core, fewer when limit or data need fewer."""
    configured = session.config.run.workers
    if isinstance(configured, int):
        return configured
    return max(min(cores, max_limit(session.config.control), -(-session.owed // ITEMS_PER_WORKER)), 1)
