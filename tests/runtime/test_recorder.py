"""The flight recorder: rows become files of the log, each once, while storage misbehaves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from store.store_rows import Relay, SmallRun

from evalpipe.control.core import Tick
from evalpipe.runtime.recorder import EVERY_ROWS, Recorder
from evalpipe.store.segments import read_segment


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    return SmallRun(Relay(tmp_path / "run"))


def tick(at: float) -> Tick:
    return Tick(at, 8.0, 4, 1, 0, 0, 100.0, 5.0, 0, 0.1, 0.2, 0.5, "grow", 2, {"aimd": 9.0})


def refuse(write) -> bool:
    raise OSError(errno.ENOSPC, "no space left")


def times_in(small: SmallRun) -> list[list[float]]:
    files = [file.info for file in small.log.state.files.values() if file.info.kind == "control"]
    return [read_segment(small.store, info)["at"].to_pylist() for info in files]


def test_rows_are_committed_with_the_epoch(small: SmallRun):
    """One file, named in the log, with the shadow's limit as JSON."""
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(0.5), tick(1.0)])

    recorder.flush()

    (file,) = small.log.state.files.values()
    row = read_segment(small.store, file.info).to_pylist()[0]
    assert (row["at"], row["epoch"], row["shadows"]) == (0.5, 1, '{"aimd": 9.0}')
    assert file.info.path.startswith("control/1-")


def test_enough_rows_are_written_without_being_told(small: SmallRun):
    """A run of hours keeps five minutes of rows in memory."""
    recorder = Recorder(small.store, small.log)

    recorder.add([tick(float(i)) for i in range(EVERY_ROWS)])

    assert [len(times) for times in times_in(small)] == [EVERY_ROWS]


def test_rows_that_storage_refuses_are_written_later_once(small: SmallRun):
    """Refused at the file, then at the log: the same file is committed in the end, newer rows in the next one."""
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(0.5)])
    small.store.on_write = refuse
    recorder.flush()
    recorder.add([tick(1.0)])

    def refuse_the_commit(write) -> bool:
        small.store.on_write = refuse
        return write()

    small.store.on_write = refuse_the_commit
    recorder.flush()
    between = times_in(small)
    recorder.flush()

    assert between == []
    assert times_in(small) == [[0.5], [1.0]]
    assert len(small.store.list("control/")) == 2
