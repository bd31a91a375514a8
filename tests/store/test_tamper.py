"""Any one file of a run damaged in any one way: verify says so, or nothing that a reader is told has changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from store_rows import SmallRun, Unsynced

from evalpipe.api import open_run
from evalpipe.errors import EvalPipeError
from evalpipe.records import AttemptRecord
from evalpipe.store import checkpoint, readable
from evalpipe.store.compact import compact
from evalpipe.store.liveness import Heartbeat
from evalpipe.store.local import LocalStore
from evalpipe.store.log import Log
from evalpipe.store.orphans import adopt_orphans
from evalpipe.store.segments import write_segment
from evalpipe.store.verify import Report, verify

#: never read back by evalpipe: a log for people, and files that failed their checks before
READ_BY_NOBODY = ("run.log", "quarantine/")
#: made anew where they are missing; without them a reader is told the same, or that there is none
DERIVED = ("_ckpt/", "_lease/", "summary.json", "config.yaml")

Files = dict[str, bytes]


class Folder:
    """A run folder as plain files: damage is done below the store."""

    def __init__(self, root: Path, *, ends: bool) -> None:
        self.root, self.ends = root, ends
        self.store = LocalStore(root, os_calls=Unsynced())
        self.sound = self.files()
        self.report = verify(self.store)
        self.table: pa.Table = open_run(root).table()
        self.summary = open_run(root).summary

    def files(self) -> Files:
        return {key: (self.root / key).read_bytes() for key in self.store.list("")}

    def write(self, files: Mapping[str, bytes]) -> None:
        """Make the folder hold these files and no others."""
        now = self.files()
        for key in now.keys() - files.keys():
            (self.root / key).unlink()
        for key, data in files.items():
            if now.get(key) != data:
                (self.root / key).write_bytes(data)


def build(root: Path, *, ends: bool) -> None:
    """Two drivers: the first died after a merge, the second adopted an orphan, worked on, and ended or was killed.

    A killed one had committed once more since its last heartbeat.
    """
    run = SmallRun(LocalStore(root, os_calls=Unsynced()))
    Heartbeat(run.store, 1, version=lambda: run.log.state.version).beat()
    run.log.commit([run.write(range(6), failed=[2])])
    compact(run.store, run.log)
    run.log.commit([run.write([3, 6, 7])])
    checkpoint.save(run.store, run.log.state)
    run.write([8])
    flipped = run.write([9])
    (root / flipped.path).write_bytes(b"torn")
    log = run.log = Log(run.store)
    log.claim(run.spec.sha256)
    adopt_orphans(run.store, log)
    heartbeat = Heartbeat(run.store, 2, version=lambda: log.state.version)
    attempt = AttemptRecord(9, 0, 0, 1, "ok", "", "", 1.7e9, 0.1, None, 5, None, 1, 8, 0, "w0.2")
    attempts = write_segment(
        run.store,
        [attempt],
        epoch=2,
        writer=log.writer,
        worker="w0.2",
        seq=90,
        spec_sha256=run.spec.sha256,
        kind="attempts",
    )
    log.commit([run.write(range(9, 14)), attempts])
    checkpoint.save(run.store, log.state)
    run.store.put("config.yaml", readable.to_yaml("run:\n  coverage: 0.95\n"))
    heartbeat.beat()
    log.commit([run.write([14, 15], generation=0)])
    run.store.put("run.log", b"level=INFO claimed epoch 2\n")
    summary = {"items": {"expected": 20, "ok": 15, "failed": 1, "missing": 4}, "log_version": log.state.version}
    run.store.put("summary.json", readable.to_json(summary))
    if ends:
        heartbeat.end()


@pytest.fixture(scope="module", params=["ended", "killed"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    root = tmp_path_factory.mktemp("tamper") / "run"
    build(root, ends=request.param == "ended")
    return Folder(root, ends=request.param == "ended")


@dataclass(frozen=True)
class Case:
    name: str
    key: str
    files: Files


def flip(files: Files, key: str, rng: random.Random) -> Files:
    data = bytearray(files[key])
    bit = rng.randrange(len(data) * 8)
    data[bit // 8] ^= 1 << bit % 8
    return {**files, key: bytes(data)}


def cut(files: Files, key: str, rng: random.Random) -> Files:
    return {**files, key: files[key][: rng.randrange(len(files[key]))]}


def lose(files: Files, key: str, rng: random.Random) -> Files:
    return {other: data for other, data in files.items() if other != key}


def swap(files: Files, key: str, rng: random.Random) -> Files:
    """With another file of its folder, or of any where it is alone."""
    kin = [other for other in files if other != key and other.split("/")[0] == key.split("/")[0]]
    other = rng.choice(kin or [other for other in files if other != key])
    return {**files, key: files[other], other: files[key]}


def double(files: Files, key: str, rng: random.Random) -> Files:
    """Under the name that would come next: the next number in the log, any other one elsewhere."""
    folder, _, name = key.rpartition("/")
    if folder == "_log":
        twin = f"_log/{len([k for k in files if k.startswith('_log/')]) + 1:010d}.json"
    else:
        twin = f"{folder}/9{name}".lstrip("/")
    return {**files, twin: files[key]}


DAMAGES: dict[str, Callable[[Files, str, random.Random], Files]] = {
    "flip": flip,
    "cut": cut,
    "lose": lose,
    "swap": swap,
    "double": double,
}


def cases(folder: Folder) -> Iterator[Case]:
    """Every file in every way, and each file's bits three times. Of a killed driver's run only what may differ."""
    rng = random.Random(20261130)
    for key in sorted(folder.sound):
        for name, damage in DAMAGES.items() if folder.ends else (("lose", lose),):
            for _ in range(3 if name == "flip" else 1):
                yield Case(name, key, damage(folder.sound, key, rng))


def told(report: Report, before: Report) -> bool:
    """Whether verify's report differs in anything that makes a person look."""
    return bool(report.problems) or (report.orphans, report.leftovers) != (before.orphans, before.leftovers)


def ask(question: Callable[[], Any]) -> Any:
    """The answer, None for a refusal."""
    try:
        return question()
    except EvalPipeError:
        return None


def is_harmless(case: Case, report: Report, before: Report) -> bool:
    """A file that nobody reads, or under a name that nobody looks for; a derived one that is missing."""
    if case.key.startswith(READ_BY_NOBODY) and case.name != "swap":
        return True
    if case.name == "double" and "/" not in case.key:
        return True
    is_derived = case.key.startswith(DERIVED)
    return is_derived and case.name in ("lose", "double") and report.problems == before.problems


def test_damage_is_told_or_changes_nothing(folder: Folder):
    """Of 150 and more cases: a reader without verify is refused or told the very same; a silent one is harmless."""
    counts = {"told": 0, "harmless": 0}

    for case in cases(folder):
        folder.write(case.files)
        report = verify(folder.store)
        table = ask(lambda: open_run(folder.root).table())
        summary = ask(lambda: open_run(folder.root).summary)
        where = (case.name, case.key, report)
        is_told = told(report, folder.report)
        counts["told" if is_told else "harmless"] += 1
        assert is_told or is_harmless(case, report, folder.report), where
        assert summary in (None, folder.summary), where
        if table is not None and not table.equals(folder.table):
            # only what the log cannot know: its very last entry, after the last word of a driver that was killed
            assert case.name == "lose" and case.key == last_entry(folder.sound), where
            assert report.orphans and report.missing > folder.report.missing, where
    folder.write(folder.sound)

    assert counts["told"] > (100 if folder.ends else 10), counts
    assert verify(folder.store) == folder.report


def last_entry(files: Files) -> str:
    return max(key for key in files if key.startswith("_log/"))


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_lost_log_entry_is_told(folder: Folder, which: str):
    """In the middle by the gap; at the end by the heartbeat or a checkpoint, or by the files it had named."""
    entries = sorted(key for key in folder.sound if key.startswith("_log/"))
    key = {"first": entries[0], "middle": entries[len(entries) // 2], "last": entries[-1]}[which]

    folder.write(lose(folder.sound, key, random.Random(0)))
    report = verify(folder.store)
    folder.write(folder.sound)

    assert told(report, folder.report)


def test_a_log_that_is_all_gone_is_told(folder: Folder):
    """Nothing is left to contradict but the files, the heartbeat and the checkpoint."""
    folder.write({key: data for key, data in folder.sound.items() if not key.startswith("_log/")})
    report, table = verify(folder.store), ask(lambda: open_run(folder.root).table())
    folder.write({k: d for k, d in folder.sound.items() if not k.startswith(("_log/", "_lease/", "_ckpt/"))})
    bare = verify(folder.store)
    folder.write(folder.sound)

    assert report.problems and bare.problems
    assert table is None


def test_an_older_copy_is_told_or_changes_nothing(folder: Folder, tmp_path: Path):
    """Each file as it was some commits earlier: an old log entry does not exist, what is overwritten is derived."""
    older = dict(folder.sound)
    summary = readable.to_json({**folder.summary, "log_version": folder.summary["log_version"] - 1})
    older["summary.json"] = summary

    folder.write(older)
    report = verify(folder.store)
    folder.write(folder.sound)

    assert report.is_sound
    assert report.notes == (
        f"summary.json is of log entry {folder.summary['log_version'] - 1},"
        f" the log is at {folder.summary['log_version']}: it is outdated",
    )
