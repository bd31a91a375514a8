"""The flight recorder: rows become files of the log, each once, while storage misbehaves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from store.store_rows import Relay, SmallRun

from evalpipe.control.core import Tick, TimedChange
from evalpipe.control.law import Evidence, LimitChange
from evalpipe.runtime.recorder import CONTROL_SCHEMA, EVERY_ROWS, FLUSH_S, Recorder, newest_first, read_flight
from evalpipe.store.segments import read_segment, write_table


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    return SmallRun(Relay(tmp_path / "run"))


def tick(at: float) -> Tick:
    return Tick(at, 8.0, 7, 3, 2, 1, 100.0, 5.0, 0, 0.1, 0.2, 0.5, "grow", 2, {"aimd": 9.0}, ttft_s=0.3)


def moved(at: float, reason: str = "grow") -> TimedChange:
    return TimedChange(
        at, LimitChange(8.0, 9.0, reason, Evidence(0.1, 0.2, 0.5, overdue=2, samples=16, state="cruise"))
    )


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

    recorder.add([tick(i / 100) for i in range(EVERY_ROWS)])

    assert [len(times) for times in times_in(small)] == [EVERY_ROWS]


def test_a_killed_driver_takes_a_minute_with_it(small: SmallRun):
    """What spans a minute of ticks is written, however few rows it is."""
    recorder = Recorder(small.store, small.log)

    recorder.add([tick(1.0)])
    recorder.add([tick(FLUSH_S)])
    early = times_in(small)
    recorder.add([tick(FLUSH_S + 1.0)])

    assert (early, times_in(small)) == ([], [[1.0, FLUSH_S, FLUSH_S + 1.0]])


def test_every_move_is_kept_with_its_evidence(small: SmallRun):
    """Each at the first row that is not before it; the last ones, which no row follows, at the last."""
    recorder = Recorder(small.store, small.log)

    recorder.add([tick(0.5), tick(1.0)], [moved(0.2), moved(0.7), moved(0.8, "queue"), moved(1.1)])
    recorder.add([tick(1.5)], [moved(1.6)])
    recorder.flush()

    rows = read_flight(small.store, small.log.state).to_pylist()
    assert [[change["at"] for change in row["changes"]] for row in rows] == [[0.2], [0.7, 0.8], [1.1, 1.6]]
    assert rows[1]["changes"][1] == {
        "at": 0.8,
        "old": 8.0,
        "new": 9.0,
        "reason": "queue",
        "baseline_s": 0.1,
        "recent_s": 0.2,
        "gradient": 0.5,
        "overdue": 2,
        "tokens_per_s": None,
        "samples": 16,
        "state": "cruise",
        "per_work": False,
    }


def test_a_row_tells_what_really_runs_and_when(small: SmallRun):
    """Active is in flight less overdue and stalled; the time of day is asked once a controller."""
    recorder = Recorder(small.store, small.log, wall=iter([1000.0, 2000.0]).__next__)

    recorder.add([tick(0.5), tick(1.0)])
    recorder.add([tick(1.5)])
    recorder.add([tick(0.5)])  # a new controller
    recorder.flush()

    rows = read_flight(small.store, small.log.state).to_pylist()
    assert [row["active"] for row in rows] == [4, 4, 4, 4]
    assert rows[0]["ttft_s"] == 0.3
    assert [row["wall_at"].timestamp() for row in rows] == [999.5, 1000.0, 1000.5, 2000.0]


def test_where_it_settles_is_taken_from_the_rows(small: SmallRun):
    """Seven in flight under a limit of eight are in use; three of them make no progress."""
    recorder = Recorder(small.store, small.log)

    recorder.add([tick(i / 2) for i in range(30)])

    assert recorder.settling.level == 4


def test_rows_of_an_earlier_version_are_read(small: SmallRun):
    """Columns that it did not have are empty; the files come in the order of the log, or the newest first."""
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(0.5)])
    recorder.flush()
    new = [name for name in CONTROL_SCHEMA.names if CONTROL_SCHEMA.field(name).nullable]
    old = read_flight(small.store, small.log.state).drop_columns(new)
    spec = small.log.state.spec_sha256
    small.log.commit([write_table(small.store, old, stem="control/1-old-driver-9", kind="control", spec_sha256=spec)])

    flight = read_flight(small.store, small.log.state)

    assert flight.schema.equals(CONTROL_SCHEMA)
    assert flight["active"].to_pylist() == [4, None]
    assert [table["active"].to_pylist() for table in newest_first(small.store, small.log.state)] == [[None], [4]]


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
