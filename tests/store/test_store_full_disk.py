"""A disk that is really full, at twenty sizes: what was written stays sound, and it goes on when there is space."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_rows import SmallRun

from evalpipe.store.compact import compact
from evalpipe.store.local import LocalStore
from evalpipe.store.verify import verify

pytestmark = pytest.mark.chaos  # needs root, to mount a small tmpfs

SIZES_KIB = range(20, 180, 8)  # the run takes about 185


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that gives the disk a size in KiB and says where it is."""
    place = tmp_path / "disk"
    place.mkdir()

    def resize(kib: int) -> Path:
        how = "remount," if place.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{how}size={kib}k", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here (root is needed): {done.stderr.strip()}")
        return place

    yield resize
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


def work_until_done(run: SmallRun, done: set[int]) -> None:
    """Write and commit what is missing, then merge. Raises OSError where the disk refuses; may be called again."""
    for start in range(0, 20, 2):
        if start not in done:
            run.log.commit([run.write([start, start + 1])])
            done.add(start)
    compact(run.store, run.log)


@pytest.mark.parametrize("kib", SIZES_KIB)
def test_a_full_disk_loses_nothing(small_disk: Callable[[int], Path], kib: int):
    """Wherever it gets full: the error says what to do, nothing torn or left over, the rest goes in afterwards."""
    root = small_disk(2_000) / "run"
    run = SmallRun(LocalStore(root))
    done: set[int] = set()
    small_disk(kib)

    failure: OSError | None = None
    try:
        work_until_done(run, done)
    except OSError as error:
        failure = error
    committed, while_full = 2 * len(done), verify(run.store)
    torn = [path.name for path in root.rglob(".tmp-*")]
    small_disk(4_000)
    work_until_done(run, done)
    after = verify(run.store)

    assert failure is not None and failure.errno == errno.ENOSPC
    assert "the disk is full: free some space" in str(failure)
    assert while_full.problems == () and while_full.ok == committed
    assert torn == []
    assert (after.ok, after.missing, after.problems, after.leftovers) == (20, 0, (), ())
