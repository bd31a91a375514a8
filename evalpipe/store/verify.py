"""Re-read everything a run has stored and say what is there. Believes no file: numbers come from rows just checked.

Read only, and meant for a run at rest: beside a living driver a file can be compacted away while this looks for it.
Printing is the command's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from evalpipe.errors import StateError
from evalpipe.store import checkpoint, log
from evalpipe.store.keys import ANSWERED, FAILED, OWED, DoneSet, KeySet
from evalpipe.store.objects import ObjectStore
from evalpipe.store.schema import RESULT_SCHEMA, conform
from evalpipe.store.segments import FOLDERS, SegmentInfo, keys_of, read_segment, spec_of
from evalpipe.store.spec import Spec, read_spec
from evalpipe.store.state import LiveFile, LogState


@dataclass(frozen=True, slots=True)
class Report:
    """What a run holds, in items times repeats.

    expected = ok + failed + missing, unless expected is 0 because the spec cannot be read. failed: no generation
    answered. duplicate: rows that came second for their key and do not count. orphans: files of workers that nobody
    committed; the next resume takes them in. problems: one sentence each; any of them means exit code 78.
    """

    expected: int
    ok: int
    failed: int
    missing: int
    duplicate: int
    files_checked: int
    orphans: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def present(self) -> int:
        return self.ok + self.failed

    @property
    def is_sound(self) -> bool:
        return not self.problems

    @property
    def is_complete(self) -> bool:
        return self.is_sound and self.missing == 0


@dataclass(slots=True)
class _Findings:
    """What the checks gather: keys of the rows that were read, each under its first file, and what is wrong."""

    seen: DoneSet = field(default_factory=DoneSet)
    duplicate: int = 0
    files_checked: int = 0
    problems: list[str] = field(default_factory=list)


def verify(store: ObjectStore) -> Report:
    """Check log, files, rows and completeness of a run. Raises only OSError; what is wrong goes into the report."""
    found = _Findings()
    spec = _check_spec(store, found)
    state = _check_log(store, found)
    if spec is not None and state.spec_sha256 not in ("", spec.sha256):
        found.problems.append(f"the log was claimed for spec {state.spec_sha256[:12]}, spec.json is {spec.sha256[:12]}")
    _check_checkpoints(store, state, found)
    for file in state.files.values():
        _check_file(store, file, spec_sha256=state.spec_sha256, found=found)
    orphans = _check_strays(store, state, found)
    return _sum_up(found, spec, orphans)


def _check_spec(store: ObjectStore, found: _Findings) -> Spec | None:
    try:
        return read_spec(store)
    except StateError as error:
        found.problems.append(f"spec: {error}")
        return None


def _check_log(store: ObjectStore, found: _Findings) -> LogState:
    """Replay from the first entry, without shortcuts, as far as the log is sound."""
    state = LogState()
    try:
        log.follow(store, state)
        log.check_end(store, state)
    except StateError as error:
        found.problems.append(f"log: {error}")
    return state


def _check_checkpoints(store: ObjectStore, state: LogState, found: _Findings) -> None:
    for key in store.list(checkpoint.FOLDER):
        try:
            saved = checkpoint.load(store, key)
            if saved.version == state.version and saved.to_json() != state.to_json():
                raise StateError(f"{key} differs from the log; delete it")
        except StateError as error:
            found.problems.append(f"checkpoint: {error}")


def _check_file(store: ObjectStore, file: LiveFile, *, spec_sha256: str, found: _Findings) -> None:
    found.files_checked += 1
    try:
        table = read_segment(store, file.info)
        ok, failed = _check_rows(table, file.info, spec_sha256=spec_sha256)
    except StateError as error:
        found.problems.append(f"file: {error}")
        return
    late = found.seen.mark(ok.minus(file.ignored), ANSWERED).union(found.seen.mark(failed.minus(file.ignored), FAILED))
    if late:
        found.problems.append(f"file: {file.info.path} has {len(late)} keys that another file has too")
    found.duplicate += len(file.ignored)


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


def _check_strays(store: ObjectStore, state: LogState, found: _Findings) -> tuple[str, ...]:
    """Return the orphans; an uncommitted part is worse, since users read that folder."""
    for path in store.list("parts/"):
        if path not in state.files:
            found.problems.append(f"part: {path} is not in the log; whoever reads parts/ would count its rows twice")
    stored = (path for folder in FOLDERS.values() for path in store.list(f"{folder}/"))
    return tuple(path for path in stored if path.endswith(".parquet") and not state.knows(path))


def _check_range(seen: DoneSet, *, items: int, repeats: int, found: _Findings) -> None:
    inside = sum(int((seen.codes(group, items=items) != OWED).sum()) for group in seen.groups() if group[0] < repeats)
    strangers = seen.count(ANSWERED) + seen.count(FAILED) - inside
    if strangers:
        found.problems.append(f"rows: {strangers} are of items or repeats that the run does not have")


def _sum_up(found: _Findings, spec: Spec | None, orphans: tuple[str, ...]) -> Report:
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
        duplicate=found.duplicate,
        files_checked=found.files_checked,
        orphans=orphans,
        problems=tuple(found.problems),
    )
