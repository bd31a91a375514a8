"""Orphans: what a dead driver's workers wrote is taken in, what is broken is set aside and named."""

from __future__ import annotations

import dataclasses

import pytest
from store_rows import SPEC, SmallRun, flip_byte, make_result

from evalpipe.errors import Fenced
from evalpipe.store.compact import compact
from evalpipe.store.log import Log
from evalpipe.store.orphans import adopt_orphans
from evalpipe.store.rows import read_all
from evalpipe.store.segments import write_segment


def successor(run: SmallRun) -> Log:
    log = Log(run.store)
    log.claim(SPEC.sha256)
    return log


def test_paid_answers_of_a_dead_driver_are_kept(run: SmallRun):
    """Written but not committed: the next driver commits them; a second look finds nothing."""
    run.log.commit([run.write([0, 1])])
    orphan = run.write([2, 3], failed=[3])
    log = successor(run)

    adoption = adopt_orphans(run.store, log)

    assert adoption.adopted == (orphan,)
    assert (adoption.rows, log.state.counts) == (2, (3, 1, 0))
    assert adopt_orphans(run.store, log).adopted == ()


def test_a_late_segment_of_a_fenced_worker_adds_no_row(run: SmallRun):
    """Its items were answered again meanwhile: the first commit is the result."""
    late = run.write([1], text="late")
    log = successor(run)
    log.commit([run.write([1], text="first")])

    adopt_orphans(run.store, log)

    assert log.state.counts == (1, 0, 1)
    assert log.state.knows(late.path)
    assert read_all(run.store, log.state)["response"].to_pylist() == ["first"]


@pytest.mark.parametrize("at", [30, -30], ids=["page", "footer"])
def test_a_flipped_orphan_goes_to_quarantine(run: SmallRun, at: int):
    """Also where the flip is in the footer, which page checksums do not cover."""
    sound, flipped = run.write([1]), run.write([2])
    flip_byte(run.store, flipped.path, at=at)
    log = successor(run)

    adoption = adopt_orphans(run.store, log)

    assert adoption.adopted == (sound,)
    assert [path for path, _ in adoption.broken] == [flipped.path]
    assert run.store.list("quarantine/") == [f"quarantine/{flipped.path}"]
    assert run.store.list("segments/") == [sound.path]
    assert log.state.counts.ok == 1


def test_a_file_of_another_run_is_not_adopted(run: SmallRun):
    """Rows know the spec they were made for."""
    foreign = write_segment(
        run.store, [make_result(1)], epoch=1, writer="b" * 32, worker="w", seq=0, spec_sha256="other"
    )
    stray = dataclasses.replace(foreign, path="segments/by-hand.parquet")
    run.store.put(stray.path, run.store.get(foreign.path))

    adoption = adopt_orphans(run.store, successor(run))

    assert dict(adoption.broken).keys() == {foreign.path, stray.path}
    assert "belongs to spec other" in dict(adoption.broken)[foreign.path]


def test_a_merged_segment_that_was_not_deleted_is_no_orphan(run: SmallRun):
    """Deleting is best effort: what is left over counts nothing twice."""
    segment = run.write([1])
    data = run.store.get(segment.path)
    run.log.commit([segment])
    compact(run.store, run.log)
    run.store.put(segment.path, data)

    assert adopt_orphans(run.store, successor(run)).adopted == ()


def test_only_the_owner_adopts(run: SmallRun):
    """A fenced driver changes nothing."""
    run.write([1])
    successor(run)
    with pytest.raises(Fenced):
        adopt_orphans(run.store, run.log)
