"""Re-read everything a run has stored and say what is there. Believes no file: numbers come from rows just checked.

Read only. Right also beside a living driver: folders are listed before the log is read, and a file that was merged away
meanwhile is looked for where its rows lie now. Printing is the command's.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from evalpipe.errors import StateError
from evalpipe.store import checkpoint, liveness, log, readable
from evalpipe.store.compact import FOLDER as PARTS
from evalpipe.store.keys import ANSWERED, FAILED, OWED, DoneSet, KeySet
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.rows import result_files
from evalpipe.store.schema import RESULT_SCHEMA, conform
from evalpipe.store.segments import FOLDERS, SegmentInfo, describe, keys_of, read_segment, spec_of
from evalpipe.store.spec import Spec, read_spec
from evalpipe.store.state import LiveFile, LogState

_EPOCH_IN_NAME = re.compile(r"/(\d+)-")


@dataclass(frozen=True, slots=True)
class Report:
    """What a run holds, in items times repeats.

    expected = ok + failed + missing, unless expected is 0 because the spec cannot be read. failed: no generation
    answered. duplicate: rows that came second for their key and do not count. orphans: files of workers that nobody
    committed; the next resume takes them in. leftovers: parts of a merge that was cut short; the next resume removes
    them. notes, problems: one sentence each; any problem means exit code 78.
    """

    expected: int
    ok: int
    failed: int
    missing: int
    duplicate: int
    files_checked: int
    orphans: tuple[str, ...]
    leftovers: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def present(self) -> int:
        return self.ok + self.failed

    @property
    def is_sound(self) -> bool:
        return not self.problems

    @property
    def is_complete(self) -> bool:
        return self.is_sound and self.missing == 0 and not self.leftovers


@dataclass(slots=True)
class _Findings:
    """What the checks gather: keys of the rows that were read, each under its first file, and what is wrong.

    checked: path -> the file as the log had it, None where it could not be used.
    """

    seen: DoneSet = field(default_factory=DoneSet)
    checked: dict[str, LiveFile | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify(store: ObjectStore) -> Report:
    """Check log, files, rows and completeness of a run. Raises only OSError; what is wrong goes into the report."""
    found = _Findings()
    stored = {folder: store.list(f"{folder}/") for folder in (*FOLDERS.values(), PARTS)}  # first: see the module
    spec = _check_spec(store, found)
    state = _check_log(store, stored, found)
    if spec is not None and state.spec_sha256 not in ("", spec.sha256):
        found.problems.append(f"the log was claimed for spec {state.spec_sha256[:12]}, spec.json is {spec.sha256[:12]}")
    _check_derived(store, state, found)
    state = _check_files(store, state, found)
    leftovers = _check_parts(store, state, stored.pop(PARTS), found)
    orphans = tuple(
        path for paths in stored.values() for path in paths if path.endswith(".parquet") and not state.knows(path)
    )
    return _sum_up(found, spec, orphans, leftovers)


def _check_spec(store: ObjectStore, found: _Findings) -> Spec | None:
    with _noting("spec", found):
        return read_spec(store)
    return None


def _check_log(store: ObjectStore, stored: dict[str, list[str]], found: _Findings) -> LogState:
    """Replay from the first entry, without shortcuts, as far as the log is sound."""
    state = LogState()
    lease = liveness.newest_lease(store)
    with _noting("log", found):
        log.follow(store, state)
        log.check_end(store, state, lease)
    epochs = [int(match[1]) for paths in stored.values() for path in paths if (match := _EPOCH_IN_NAME.search(path))]
    if max(epochs, default=0) > state.epoch:
        found.problems.append(f"log: files of epoch {max(epochs)} are there, the log ends in epoch {state.epoch}")
    return state


def _check_derived(store: ObjectStore, state: LogState, found: _Findings) -> None:
    """Check what is made from the log and beside it; nothing is counted from these."""
    for key in store.list(checkpoint.FOLDER):
        with _noting("checkpoint", found), contextlib.suppress(NotFound):  # a newer one took its place
            saved = checkpoint.load(store, key)
            if saved.version == state.version and saved.to_json() != state.to_json():
                raise StateError(f"{key} differs from the log; delete it")
    for key in store.list(liveness.FOLDER):
        with _noting("heartbeat", found):
            liveness.load(store, key)
    _check_readable(store, state, found)


def _check_readable(store: ObjectStore, state: LogState, found: _Findings) -> None:
    """Check the files that carry their own checksum, where they were written yet."""
    with _noting("derived", found), contextlib.suppress(NotFound):
        readable.check_yaml(store.get("config.yaml"), key="config.yaml")
    with _noting("derived", found), contextlib.suppress(NotFound):
        summary = readable.from_json(store.get("summary.json"), key="summary.json")
        if summary.get("log_version", state.version) < state.version:
            made_at = summary["log_version"]
            found.notes.append(f"summary.json is of log entry {made_at}, the log is at {state.version}: it is outdated")


@contextlib.contextmanager
def _noting(topic: str, found: _Findings) -> Iterator[None]:
    try:
        yield
    except StateError as error:
        found.problems.append(f"{topic}: {error}")


def _check_files(store: ObjectStore, state: LogState, found: _Findings) -> LogState:
    """Read every file that the log names; return the state of the log in which all of them were there."""
    todo = deque(state.files.values())
    while todo:
        file = todo.popleft()
        try:
            _check_file(store, file, spec_sha256=state.spec_sha256, found=found)
        except NotFound as error:
            newer = _newer(store, state)
            if file.info.path in newer.files:
                _note(found, file, error)
                continue
            state = newer  # merged meanwhile: its rows, and those of others read before, are in a part now
            for path in found.checked.keys() - state.files.keys():
                _unsee(found, path)
            todo = deque(file for path, file in state.files.items() if path not in found.checked)
    return state


def _newer(store: ObjectStore, state: LogState) -> LogState:
    """Return the log as it is now; as it was where it cannot be read on (which is told already)."""
    newer = LogState()
    try:
        log.follow(store, newer)
    except StateError:
        return state
    return newer if newer.version > state.version else state


def _check_file(store: ObjectStore, file: LiveFile, *, spec_sha256: str, found: _Findings) -> None:
    """Raises NotFound; what else is wrong is noted."""
    try:
        table = read_segment(store, file.info)
        ok, failed = _check_rows(table, file.info, spec_sha256=spec_sha256)
    except (NotFound, TimeoutError):
        raise
    except (StateError, OSError) as error:  # a sector that cannot be read is damage
        _note(found, file, error)
        return
    found.checked[file.info.path] = file
    late = found.seen.mark(ok.minus(file.ignored), ANSWERED).union(found.seen.mark(failed.minus(file.ignored), FAILED))
    if late:
        found.problems.append(f"file: {file.info.path} has {len(late)} keys that another file has too")


def _note(found: _Findings, file: LiveFile, error: Exception) -> None:
    found.checked[file.info.path] = None
    found.problems.append(f"file: {error}")


def _unsee(found: _Findings, path: str) -> None:
    """Forget a file that was checked and is merged into another one."""
    file = found.checked.pop(path)
    if file is not None and file.info.kind == "results":
        found.seen.release(file.winners)


def _check_rows(table: pa.Table, info: SegmentInfo, *, spec_sha256: str) -> tuple[KeySet, KeySet]:
    if spec_of(table) != spec_sha256:
        raise StateError(f"{info.path} belongs to another run: spec {spec_of(table)[:12] or '(none)'}")
    if table.num_rows != info.rows:
        raise StateError(f"{info.path} has {table.num_rows} rows, the log says {info.rows}")
    if info.kind != "results":
        return KeySet(), KeySet()
    ok, failed = keys_of(conform(table, RESULT_SCHEMA))
    if (ok, failed) != (info.ok, info.failed):
        raise StateError(f"{info.path} has other keys than the log says")
    return ok, failed


def _check_parts(store: ObjectStore, state: LogState, parts: list[str], found: _Findings) -> tuple[str, ...]:
    """Return the parts that a merge wrote and did not commit; any other stranger in that folder is a problem."""
    leftovers = []
    for path in parts:
        if state.knows(path):
            continue
        if _is_of_a_merge(store, state, path):
            leftovers.append(path)
        else:
            found.problems.append(f"part: {path} is not in the log; whoever reads parts/ would count its rows")
    return tuple(leftovers)


def _is_of_a_merge(store: ObjectStore, state: LogState, path: str) -> bool:
    """Say whether the segments that the part was made from are all there still, so that the merge can be done again."""
    try:
        info = describe(path, store.get(path), kind="results", spec_sha256=state.spec_sha256)
    except (StateError, OSError):
        return False
    unmerged = DoneSet()
    for file in result_files(state):
        if not file.info.path.startswith(f"{PARTS}/"):
            unmerged.mark(file.winners, ANSWERED)
    return len(unmerged.mark(info.ok.union(info.failed), FAILED)) == info.rows


def _check_range(seen: DoneSet, *, items: int, repeats: int, found: _Findings) -> None:
    inside = sum(int((seen.codes(group, items=items) != OWED).sum()) for group in seen.groups() if group[0] < repeats)
    strangers = seen.count(ANSWERED) + seen.count(FAILED) - inside
    if strangers:
        found.problems.append(f"rows: {strangers} are of items or repeats that the run does not have")


def _sum_up(found: _Findings, spec: Spec | None, orphans: tuple[str, ...], leftovers: tuple[str, ...]) -> Report:
    items, repeats = (0, 0) if spec is None else (spec.items, spec.repeats)
    if spec is not None:
        _check_range(found.seen, items=items, repeats=repeats, found=found)
    codes = [found.seen.outcomes(repeat=repeat, items=items) for repeat in range(repeats)]
    ok, failed, missing = (sum(int((c == code).sum()) for c in codes) for code in (ANSWERED, FAILED, OWED))
    return Report(
        expected=items * repeats,
        ok=ok,
        failed=failed,
        missing=missing,
        duplicate=sum(len(file.ignored) for file in found.checked.values() if file is not None),
        files_checked=len(found.checked),
        orphans=orphans,
        leftovers=leftovers,
        notes=tuple(found.notes),
        problems=tuple(found.problems),
    )
