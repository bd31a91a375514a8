"""The numbered log of a run: claim it, commit to it, replay it. The one place where two drivers meet.

A commit is a put-if-absent of the next number, so that one of two writers loses, looks at what the winner wrote, and
either goes on after it or learns that it is fenced. Readers ask for version + 1; a listing is only used to notice that
an entry is gone. That the last entries are gone is told by what was made from them: a checkpoint, the heartbeat.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from evalpipe.errors import Fenced, StateError
from evalpipe.store import checkpoint
from evalpipe.store.entry import FOLDER, Entry, entry_key, version_of
from evalpipe.store.liveness import LeaseRecord, lease_key, newest_lease
from evalpipe.store.objects import NotFound, ObjectStore, create
from evalpipe.store.segments import SegmentInfo
from evalpipe.store.state import LogState

CHECKPOINT_EVERY = 100  # versions; a replay then reads at most that many entries, some 0.1 s


def wall_and_mono() -> tuple[float, float]:
    return time.time(), time.monotonic()


class Log:
    """One driver's hold on the log of a run; used by one thread.

    writer: nonce of this driver, never used before. stamp: (wall, monotonic) seconds that entries carry for people.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        writer: str | None = None,
        stamp: Callable[[], tuple[float, float]] = wall_and_mono,
    ) -> None:
        self._store = store
        self._stamp = stamp
        self.writer = writer or uuid.uuid4().hex
        self.epoch = 0  # ours, from the claim on
        self.state = LogState()
        self._unsure: Entry | None = None  # it may be there without being durable: its write failed

    def replay(self) -> LogState:
        """Read the whole log anew, from the newest sound checkpoint on. Raises StateError when it is damaged."""
        self.state = read_state(self._store)
        return self.state

    def claim(self, spec_sha256: str, *, after: int | None = None) -> int:
        """Open the next epoch, which fences every driver before, and return its number.

        after: the epoch whose driver is known to be gone; a later one is not fenced but left alone (Fenced).
        Raises StateError when the run was made for another spec, Fenced when another driver claims at the same time.
        """
        self.replay()
        before = self.state.epoch
        if after is not None and before != after:
            raise Fenced(f"another driver ({self.state.writer[:8]}) has just claimed this run; it goes on")
        while not self._owns_last_epoch():
            if self.state.epoch != before:
                raise Fenced(
                    f"another driver ({self.state.writer[:8]}) claimed this run at the same moment; it goes on"
                )
            self._try(self._entry(epoch=before + 1, claim=spec_sha256))
        self.epoch = self.state.epoch
        return self.epoch

    def commit(self, add: Iterable[SegmentInfo] = (), remove: Sequence[str] = ()) -> int:
        """Make files count, and others no longer, in one step; return the version that did it.

        Files committed before are left out, so that a report may come twice. Raises Fenced when another driver owns
        the run now, StateError when results would get lost, OSError while storage fails (call again).
        """
        files = {info.path: info for info in add}
        while True:
            self.check_owner()
            fresh = tuple(info for info in files.values() if not self.state.knows(info.path))
            gone = tuple(path for path in remove if path not in self.state.removed)
            if not fresh and not gone:
                return self.state.version
            if self._try(self._entry(epoch=self.epoch, add=fresh, remove=gone)):
                if self.state.version % CHECKPOINT_EVERY == 0:
                    self.save_checkpoint()
                return self.state.version

    def refresh(self) -> LogState:
        """Read what was committed since. Raises Fenced when another driver owns the run now, OSError."""
        if self._unsure is not None:
            self._create(self._unsure)  # or it would be believed, and a power cut could take it back
        follow(self._store, self.state)
        self.check_owner()
        return self.state

    def check_owner(self) -> None:
        """Raise Fenced unless, as far as was read, we own the run."""
        if self.epoch == 0:
            raise StateError("claim the run before writing to it")
        if not self._owns_last_epoch() or self.state.epoch != self.epoch:
            raise Fenced(
                f"another driver ({self.state.writer[:8]}) owns this run since epoch {self.state.epoch},"
                f" ours was {self.epoch}; this one stops"
            )

    def _owns_last_epoch(self) -> bool:
        return self.state.writer == self.writer

    def _entry(
        self, *, epoch: int, claim: str | None = None, add: tuple[SegmentInfo, ...] = (), remove: tuple[str, ...] = ()
    ) -> Entry:
        wall, mono = self._stamp()
        return Entry(
            version=self.state.version + 1,
            epoch=epoch,
            writer=self.writer,
            claim=claim,
            add=add,
            remove=remove,
            before=self.state.counts,
            wall=wall,
            mono=mono,
        )

    def _try(self, entry: Entry) -> bool:
        """Write the entry if its number is free; if not, read on, so that the caller can look who took it."""
        self.state.check(entry)  # an entry that nobody could apply would end the log
        if self._create(entry):
            self.state.apply(entry)
            return True
        follow(self._store, self.state)
        return False

    def _create(self, entry: Entry) -> bool:
        """Write the entry durably; also where its name is taken, what is there is made durable. Raises OSError."""
        self._unsure = entry
        is_ours = create(self._store, entry_key(entry.version), entry.to_bytes())
        self._unsure = None
        return is_ours

    def save_checkpoint(self) -> None:
        """Spare the next replay the entries so far."""
        with contextlib.suppress(OSError):  # derived: the log is complete without it
            checkpoint.save(self._store, self.state)


def read_state(store: ObjectStore) -> LogState:
    """Replay the log of a run for reading. Raises StateError when an entry is damaged or missing."""
    lease = newest_lease(store)  # before the log, which is then at least as long as it says
    state = checkpoint.load_newest(store) or LogState()
    follow(store, state)
    check_end(store, state, lease)
    return state


def follow(store: ObjectStore, state: LogState) -> None:
    """Apply the entries after state.version, as many as there are. Raises StateError for a damaged one."""
    while (entry := read_entry(store, state.version + 1)) is not None:
        state.apply(entry)


def read_entry(store: ObjectStore, version: int) -> Entry | None:
    """Read one entry; None when the log does not reach that far. Raises StateError when it is damaged."""
    key = entry_key(version)
    try:
        return Entry.from_bytes(store.get(key), key=key)
    except NotFound:
        return None


def check_end(store: ObjectStore, state: LogState, lease: LeaseRecord | None) -> None:
    """Raise StateError when the log was longer once: then entries were lost, and results with them.

    lease: of the newest epoch, read before the log was.
    """
    last = max(map(version_of, store.list(FOLDER)), default=0)
    if last > state.version and read_entry(store, state.version + 1) is None:
        raise StateError(
            f"log entry {state.version + 1} is missing but entry {last} exists in {store.url};"
            " restore the file from a copy: the results it names cannot be counted without it"
        )
    if lease is not None and (lease.version > state.version or lease.epoch > state.epoch):
        raise StateError(
            f"the log of {store.url} ends at entry {state.version} of epoch {state.epoch}, but the driver of epoch"
            f" {lease.epoch} had seen {f'entry {lease.version}' if lease.version else 'its own claim'}; restore _log/"
            f" from a copy, or delete {lease_key(lease.epoch)}: then resume takes in what is still there"
        )
