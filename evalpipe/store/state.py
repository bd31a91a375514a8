"""What the log adds up to: the live files, who owns the run, which keys have a result. Pure; one door, `apply`.

The first commit of a key wins. A later row of the same key is remembered as ignored with its file and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalpipe.errors import StateError
from evalpipe.records import Key
from evalpipe.store.entry import Counts, Entry
from evalpipe.store.keys import ANSWERED, FAILED, OWED, Codes, DoneSet, Group, KeySet
from evalpipe.store.segments import SegmentInfo


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that counts. ignored: keys of its rows that lost to an earlier commit."""

    info: SegmentInfo
    ignored: KeySet = field(default_factory=KeySet)

    @property
    def winners(self) -> KeySet:
        return self.answered.union(self.failed)

    @property
    def answered(self) -> KeySet:
        return self.info.ok.minus(self.ignored)

    @property
    def failed(self) -> KeySet:
        return self.info.failed.minus(self.ignored)


class LogState:
    """The log up to `version`. epoch 0 and writer "": nobody has claimed the run yet."""

    def __init__(self) -> None:
        self.version = 0
        self.epoch = 0
        self.writer = ""
        self.spec_sha256 = ""
        self.files: dict[str, LiveFile] = {}  # in commit order
        self.removed: set[str] = set()  # compacted away; never to be added again
        self.duplicate_rows = 0
        self._done = DoneSet()

    @property
    def counts(self) -> Counts:
        return Counts(self._done.count(ANSWERED), self._done.count(FAILED), self.duplicate_rows)

    def apply(self, entry: Entry) -> None:
        """Take in the next entry. Raises StateError, and changes nothing, when it cannot follow what is here."""
        self._done, added = self._check(entry) or (self._done, _settle(entry, self._done, self.files))
        self.version, self.epoch, self.writer = entry.version, entry.epoch, entry.writer
        self.spec_sha256 = entry.claim or self.spec_sha256
        for path in entry.remove:
            del self.files[path]
        self.removed.update(entry.remove)
        self.files.update((file.info.path, file) for file in added)
        self.duplicate_rows += sum(len(file.ignored) for file in added)

    def check(self, entry: Entry) -> None:
        """Raise StateError unless the entry can follow; a writer asks before it commits."""
        self._check(entry)

    def _check(self, entry: Entry) -> tuple[DoneSet, list[LiveFile]] | None:
        """Return what an entry that removes files leads to: found out on a copy, since it may not take results away."""
        self._check_writer(entry)
        if entry.before != self.counts:
            raise StateError(
                f"log entry {entry.version} was written after {entry.before}, replay gives {self.counts}:"
                " an entry before it is not the one its writer saw"
            )
        self._check_files(entry)
        if not entry.remove:
            return None
        done = self._done.copy()
        added = _settle(entry, done, self.files)
        if not done.keeps(self._done):
            raise StateError(f"log entry {entry.version} would take results away: {len(entry.remove)} files removed")
        return done, added

    def knows(self, path: str) -> bool:
        """Say whether the file counts or did before it was compacted away."""
        return path in self.files or path in self.removed

    def is_done(self, key: Key) -> bool:
        return self._done.code(key) != OWED

    def groups(self) -> list[Group]:
        """Return the (repeat, generation) pairs that have results."""
        return self._done.groups()

    def generations(self, repeat: int) -> list[int]:
        return [generation for r, generation in self._done.groups() if r == repeat]

    def codes(self, *, repeat: int, generation: int, items: int) -> Codes:
        """Return uint8[items]: OWED, ANSWERED or FAILED for items 0 .. items - 1 of one repeat and generation."""
        return self._done.codes((repeat, generation), items=items)

    def outcomes(self, *, repeat: int, items: int) -> Codes:
        """Return uint8[items]: what users see of each item, an answer of any generation above a failure."""
        return self._done.outcomes(repeat=repeat, items=items)

    def visible_generations(self, *, repeat: int, items: int) -> NDArray[np.int32]:
        """Return int32[items]: the newest answered generation, else the newest; -1 where there is none."""
        visible = np.full(items, -1, dtype=np.int32)
        is_answered = np.zeros(items, dtype=bool)
        for generation in self.generations(repeat):  # ascending
            codes = self.codes(repeat=repeat, generation=generation, items=items)
            replaces = (codes == ANSWERED) | ((codes == FAILED) & ~is_answered)
            visible[replaces] = generation
            is_answered |= codes == ANSWERED
        return visible

    def validate(self) -> None:
        """Assert that the done set is exactly what the live files win."""
        assert sum(len(file.winners) for file in self.files.values()) == self.counts.ok + self.counts.failed
        assert not self.removed & set(self.files)
        assert _replay_files(self.files).keeps(self._done)

    def to_json(self) -> dict[str, Any]:
        files = [{"info": file.info.to_json(), "ignored": file.ignored.to_json()} for file in self.files.values()]
        plain = {name: getattr(self, name) for name in ("version", "epoch", "writer", "spec_sha256", "duplicate_rows")}
        return {**plain, "files": files, "removed": sorted(self.removed)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogState:
        """Raises KeyError, TypeError or ValueError for anything but what to_json makes."""
        state = cls()
        for name in ("version", "epoch", "writer", "spec_sha256", "duplicate_rows"):
            setattr(state, name, data[name])
        for item in data["files"]:
            info = SegmentInfo.from_json(item["info"])
            state.files[info.path] = LiveFile(info, KeySet.from_json(item["ignored"]))
        state.removed = set(data["removed"])
        state._done = _replay_files(state.files)
        return state

    def _check_writer(self, entry: Entry) -> None:
        if entry.version != self.version + 1:
            raise StateError(f"log entry {entry.version} cannot follow entry {self.version}")
        if entry.claim is None and (entry.epoch, entry.writer) != (self.epoch, self.writer):
            raise StateError(
                f"log entry {entry.version} is by {entry.writer[:8]} in epoch {entry.epoch},"
                f" but {self.writer[:8] or 'nobody'} owns epoch {self.epoch}"
            )
        if entry.claim is not None and entry.epoch != self.epoch + 1:
            raise StateError(f"log entry {entry.version} claims epoch {entry.epoch} after epoch {self.epoch}")
        if entry.claim is not None and self.spec_sha256 not in ("", entry.claim):
            raise StateError(
                f"the run was made with other settings or data: spec {self.spec_sha256[:12]} in the log,"
                f" {entry.claim[:12]} now; use the old settings, or another run name"
            )

    def _check_files(self, entry: Entry) -> None:
        added = Counter(info.path for info in entry.add)
        again = sorted(path for path, times in added.items() if times > 1 or self.knows(path))
        absent = sorted(path for path in entry.remove if path not in self.files)
        if again:
            raise StateError(f"log entry {entry.version} adds files a second time: {again}")
        if absent:
            raise StateError(f"log entry {entry.version} removes files that do not count: {absent}")


def _settle(entry: Entry, done: DoneSet, files: Mapping[str, LiveFile]) -> list[LiveFile]:
    """Move the keys of an entry into done: removed files give theirs up first, so that added ones can take them."""
    for path in entry.remove:
        done.release(files[path].answered)
        done.release(files[path].failed)
    return [LiveFile(info, done.mark(info.ok, ANSWERED).union(done.mark(info.failed, FAILED))) for info in entry.add]


def _replay_files(files: Mapping[str, LiveFile]) -> DoneSet:
    done = DoneSet()
    for file in files.values():
        done.mark(file.answered, ANSWERED)
        done.mark(file.failed, FAILED)
    return done
