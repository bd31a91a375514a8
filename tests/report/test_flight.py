"""The recorder's rows as arrays: drivers laid end to end, moves in their place, thinned without losing a peak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from report.stored import moved, tick
from store.store_rows import Relay, SmallRun

from evalpipe.report.flight import Flight, Move, flight_of
from evalpipe.runtime.recorder import CONTROL_SCHEMA, Recorder, read_flight
from evalpipe.store.schema import conform


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    return SmallRun(Relay(tmp_path / "run"))


def test_two_drivers_are_laid_end_to_end(small: SmallRun):
    """The second begins half a second after the last row of the first, whenever it really was; its moves follow."""
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(0.5), tick(1.0)], [moved(0.9, "grow", 16, 17)])
    recorder.add([tick(0.5), tick(1.0)], [moved(0.6, "queue", 17, 12)])
    recorder.flush()

    flight = flight_of(read_flight(small.store, small.log.state))

    assert flight.at.tolist() == [0.5, 1.0, 2.0, 2.5]
    assert flight.begins == (2.0,)
    assert flight.moves == [Move(0.9, "grow", 16.0, 17.0), Move(2.1, "queue", 17.0, 12.0)]
    assert flight.seconds == 2.5


def test_a_driver_of_one_row_is_another_driver_too(small: SmallRun):
    """Its clock did not go back, its epoch went on."""
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(0.5)])
    recorder.flush()
    later = Recorder(small.store, small.log)
    small.log.epoch += 1
    later.add([tick(0.6)])
    small.log.epoch -= 1
    later.flush()

    flight = flight_of(read_flight(small.store, small.log.state))

    assert (flight.at.tolist(), flight.begins) == ([0.5, 1.6], (1.6,))


def test_a_law_that_was_not_a_shadow_all_the_time_has_gaps(small: SmallRun):
    """A resumed run may have other shadows."""
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(0.5, shadows={"aimd": 9.0}), tick(1.0, shadows={"gradient": 8.0})])
    recorder.flush()

    flight = flight_of(read_flight(small.store, small.log.state))

    np.testing.assert_equal(flight.shadows, {"aimd": [9.0, np.nan], "gradient": [np.nan, 8.0]})


def test_rows_without_changes_have_their_reason_alone(small: SmallRun):
    """An earlier version kept no more; its moves have a time and a reason."""
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(0.5, reason="grow"), tick(1.0)])
    recorder.flush()
    table = read_flight(small.store, small.log.state)
    old = conform(table.drop_columns(["changes"]), CONTROL_SCHEMA)

    assert flight_of(old).moves == [Move(0.5, "grow")]


def test_no_rows_are_a_flight_of_no_length():
    """A run that was killed at once."""
    flight = flight_of(CONTROL_SCHEMA.empty_table())

    assert (len(flight), flight.seconds, flight.moves) == (0, 0.0, [])


def test_thinning_keeps_peaks_and_totals():
    """Of 1,000 rows 100 remain: the worst queue and every rejection are still there, the time axis is the same."""
    at = np.arange(1, 1001) / 2
    overdue, rejected = np.zeros(1000), np.zeros(1000)
    overdue[333], rejected[[10, 11, 500]] = 40, 1
    columns = {"limit": np.full(1000, 16.0), "overdue": overdue, "rejected": rejected, "ttft_s": np.full(1000, np.nan)}

    thin = Flight(at, columns, {"aimd": np.full(1000, 20.0)}, []).thinned(100)

    assert len(thin) == len(thin.shadows["aimd"]) == 100
    assert thin.at[-1] == at[-1]
    assert thin.columns["overdue"].max() == 40
    assert thin.columns["rejected"].sum() == 3
    assert np.isnan(thin.columns["ttft_s"]).all()


def test_few_rows_are_left_as_they_are():
    """Nothing is thinned that fits."""
    flight = Flight(np.array([0.5]), {"limit": np.array([16.0])}, {}, [])

    assert flight.thinned(100) is flight
