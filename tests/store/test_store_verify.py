"""verify: a sound run has no problems, and each kind of damage is a problem; never a silent wrong number."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from store_rows import SPEC, SmallRun, flip_byte

from evalpipe.store import checkpoint
from evalpipe.store.compact import compact
from evalpipe.store.entry import entry_key
from evalpipe.store.local import LocalStore
from evalpipe.store.verify import verify


@pytest.fixture
def full(run: SmallRun) -> SmallRun:
    """Items 0 to 9 in a part, 10 to 18 in two segments, 19 missing; 2 failed; 3 answered twice; a checkpoint."""
    run.log.commit([run.write(range(10), failed=[2])])
    compact(run.store, run.log)
    run.log.commit([run.write([3, *range(10, 15)])])
    run.log.commit([run.write(range(15, 19))])
    checkpoint.save(run.store, run.log.state)
    return run


def test_a_sound_run_is_counted(full: SmallRun):
    """Expected, answered, failed, missing and duplicate rows, from the rows themselves."""
    report = verify(full.store)

    assert (report.expected, report.ok, report.failed, report.missing, report.duplicate) == (20, 18, 1, 1, 1)
    assert (report.files_checked, report.orphans, report.problems) == (3, (), ())
    assert report.is_sound and not report.is_complete


def test_a_complete_run_is_complete(full: SmallRun):
    """An orphan is named but does not count before it is committed."""
    last = full.write([19])
    before = verify(full.store)
    full.log.commit([last])

    assert before.orphans == (last.path,) and not before.is_complete
    assert verify(full.store).is_complete


def segment_of(run: SmallRun) -> str:
    return run.store.list("segments/")[0]


def part_of(run: SmallRun) -> str:
    return run.store.list("parts/")[0]


def truncate(store: LocalStore, key: str) -> None:
    store.put(key, store.get(key)[:-20])


DAMAGES: dict[str, tuple[Callable[[SmallRun], None], str]] = {
    "flipped segment": (lambda r: flip_byte(r.store, segment_of(r), at=40), "file: segments/.* is damaged"),
    "deleted segment": (lambda r: r.store.delete(segment_of(r)), "file: no object segments/"),
    "truncated part": (lambda r: truncate(r.store, part_of(r)), "file: parts/.* is damaged"),
    "one file for another": (lambda r: r.store.put(segment_of(r), r.store.get(part_of(r))), "file: .* is damaged"),
    "missing entry": (lambda r: r.store.delete(entry_key(4)), "log: log entry 4 is missing but entry 5 exists"),
    "missing last entry": (
        lambda r: r.store.delete(entry_key(5)),
        "checkpoint: .* made from a log entry that is gone: no object _log/0000000005",
    ),
    "flipped entry": (lambda r: flip_byte(r.store, entry_key(3), at=9), "log: .*0000000003.json is damaged"),
    "foreign entry": (
        lambda r: r.store.put(entry_key(4), r.store.get(entry_key(5))),
        "log: log entry 5 cannot follow entry 3",
    ),
    "uncommitted part": (lambda r: r.store.put("parts/x.parquet", r.store.get(part_of(r))), "part: parts/x.parquet"),
    "flipped spec": (lambda r: flip_byte(r.store, "spec.json", at=9), "spec: spec.json is damaged"),
    "missing spec": (lambda r: r.store.delete("spec.json"), "spec: no object spec.json"),
    "flipped checkpoint": (lambda r: flip_byte(r.store, r.store.list("_ckpt/")[0], at=20), "checkpoint: "),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(full: SmallRun, name: str):
    """And what can no longer be read is not counted as there."""
    damage, problem = DAMAGES[name]
    damage(full)

    report = verify(full.store)

    assert not report.is_sound
    assert any(re.match(problem, text) for text in report.problems), report.problems
    assert report.ok <= 18


def test_a_lost_file_is_missing_rows(full: SmallRun):
    """Four answers were in it."""
    (path,) = [path for path, file in full.log.state.files.items() if file.info.rows == 4]
    full.store.delete(path)

    report = verify(full.store)

    assert (report.ok, report.failed, report.missing) == (14, 1, 5)


def test_random_flips_are_found_or_harmless(full: SmallRun):
    """Any byte of any file of the run: either a problem, or the very same numbers."""
    rng = random.Random(1)
    sound = verify(full.store)
    keys = full.store.list("")

    for _ in range(60):
        key = rng.choice(keys)
        at = rng.randrange(len(full.store.get(key)))
        flip_byte(full.store, key, at=at)
        assert verify(full.store).problems, (key, at)
        flip_byte(full.store, key, at=at)
    assert verify(full.store) == sound


def test_rows_outside_the_run_are_a_problem(run: SmallRun):
    """A row of item 20 cannot be of a run with 20 items."""
    run.log.commit([run.write([SPEC.items])])

    assert "rows: 1 are of items or repeats that the run does not have" in verify(run.store).problems


def test_an_empty_folder_is_a_problem_not_a_crash(store: LocalStore):
    """Nothing was begun there."""
    report = verify(store)

    assert report.expected == 0
    assert report.problems == (f"spec: no object spec.json in {store.url}",)
    assert not report.is_complete
