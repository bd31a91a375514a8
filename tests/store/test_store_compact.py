"""Compaction conserves rows; reading shows each key once."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow as pa
import pytest
from store_rows import SmallRun, flip_byte, lose_reply

from evalpipe.errors import Fenced, StateError
from evalpipe.store.compact import compact
from evalpipe.store.log import Log, read_state
from evalpipe.store.rowhash import hash_rows
from evalpipe.store.rows import read_all, read_results
from evalpipe.store.schema import RESULT_SCHEMA
from evalpipe.store.segments import decode, encode


def test_parts_hold_exactly_the_rows_that_count(run: SmallRun):
    """Same rows before and after, sorted, without the losers; the segments are gone."""
    run.log.commit([run.write([7, 3, 5], failed=[5]), run.write([4, 3], text="second")])
    run.log.commit([run.write([19, 0])])
    before = read_all(run.store, run.log.state)

    (part,) = compact(run.store, run.log)

    stored = decode(run.store.get(part.path))
    assert stored["item_index"].to_pylist() == [0, 3, 4, 5, 7, 19]
    assert stored["response"].to_pylist()[1] == "yes"
    assert read_all(run.store, run.log.state).equals(before)
    assert run.store.list("segments/") == []
    assert read_state(run.store).counts == (5, 1, 1)


def test_parts_are_bounded(run: SmallRun):
    """A part never gets more rows than asked, and each is one commit."""
    run.log.commit([run.write(range(i, i + 4)) for i in range(0, 20, 4)])

    parts = compact(run.store, run.log, max_rows=8)

    assert [part.rows for part in parts] == [8, 8, 4]
    assert run.log.state.version == 5
    assert read_all(run.store, run.log.state)["item_index"].to_pylist() == list(range(20))


def test_a_second_compaction_leaves_parts_alone(run: SmallRun):
    """Only new segments are merged, so the whole cost stays linear."""
    run.log.commit([run.write([1])])
    (first,) = compact(run.store, run.log)
    run.log.commit([run.write([0])])

    (second,) = compact(run.store, run.log)

    assert run.store.list("parts/") == sorted([first.path, second.path])
    assert compact(run.store, run.log) == []


def test_a_segment_of_losers_only_vanishes(run: SmallRun):
    """It wins nothing, so no part is made of it."""
    run.log.commit([run.write([1])])
    compact(run.store, run.log)
    run.log.commit([run.write([1], text="second")])

    assert compact(run.store, run.log) == []
    assert [path for path in run.log.state.files if path.startswith("segments/")] == []


def test_a_damaged_segment_stops_compaction(run: SmallRun):
    """Nothing is merged from a file that is not the one the log means."""
    segment = run.write([1])
    run.log.commit([segment])
    flip_byte(run.store, segment.path, at=30)

    with pytest.raises(StateError, match="damaged"):
        compact(run.store, run.log)

    assert run.store.list("parts/") == []


def test_compaction_survives_a_lost_reply(run: SmallRun):
    """The part is there, byte for byte."""
    run.log.commit([run.write([1, 2])])
    run.store.on_write = lose_reply

    (part,) = compact(run.store, run.log)

    assert run.log.state.counts.ok == part.rows == 2


def test_a_part_without_commit_is_swept(run: SmallRun):
    """A driver died between writing a part and committing it: readers of the folder must not see its rows twice."""
    run.log.commit([run.write([1])])
    run.store.put("parts/stray.parquet", encode([], RESULT_SCHEMA))

    (part,) = compact(run.store, run.log)

    assert run.store.list("parts/") == [part.path]


def test_torn_files_of_the_dead_are_swept(run: SmallRun):
    """A run that is complete but for its parts is only compacted: nobody else would come by."""
    run.log.commit([run.write([1])])
    torn = Path(run.store.url) / f"parts/.tmp-{socket.gethostname()}-999999999-0"
    torn.parent.mkdir()
    torn.touch()

    compact(run.store, run.log)

    assert not torn.exists()


def test_a_fenced_driver_does_not_compact(run: SmallRun):
    """Nor does it delete anything."""
    segment = run.write([1])
    run.log.commit([segment])
    Log(run.store).claim(run.spec.sha256)

    with pytest.raises(Fenced):
        compact(run.store, run.log)

    assert run.store.list("segments/") == [segment.path]


def test_the_newest_answer_is_shown(run: SmallRun):
    """A failed retry never replaces an answer; every generation can be asked for."""
    run.log.commit([run.write([0, 1, 2], failed=[1, 2])])
    run.log.commit([run.write([0, 1, 2], failed=[0, 2], generation=1)])

    shown = read_all(run.store, run.log.state)

    assert shown.select(["item_index", "generation", "status"]).to_pydict() == {
        "item_index": [0, 1, 2],
        "generation": [0, 1, 1],
        "status": ["ok", "ok", "failed"],
    }
    assert read_all(run.store, run.log.state, every_generation=True).num_rows == 6


def test_a_run_without_results_reads_as_an_empty_table(run: SmallRun):
    """With all its columns."""
    assert read_all(run.store, run.log.state).schema.equals(RESULT_SCHEMA)
    assert list(read_results(run.store, run.log.state)) == []


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"t": ["a", None], "f": [0.0, None]}),
        pa.table({"t": ["a", "b"], "f": [0.0, 0.0]}),
        pa.table({"t": [None, "b"], "f": [0.0, None]}),
        pa.table({"t": ["a", "b", "b"], "f": [0.0, None, None]}),
    ],
)
def test_the_hash_of_rows_sees_values_nulls_and_counts(other: pa.Table):
    """But not their order, and NaN equals itself."""
    table = pa.table({"t": ["a", "b"], "f": [0.0, None]})
    nan = pa.table({"t": ["a"], "f": [float("nan")]})

    assert hash_rows(table) == hash_rows(table.take([1, 0]))
    assert hash_rows(table) != hash_rows(other)
    assert hash_rows(nan) == hash_rows(nan.take([0]))
