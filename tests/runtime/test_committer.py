"""The committer: what workers reported becomes one entry of the log, once, while storage and rivals misbehave."""

from __future__ import annotations

from pathlib import Path

import pytest
from store.store_rows import Relay, SmallRun, flip_byte, lose_reply, lose_request

from evalpipe.errors import Fenced
from evalpipe.records import Key
from evalpipe.runtime.committer import COMMIT_S, GIVE_UP_S, Committer
from evalpipe.runtime.messages import Written
from evalpipe.store.log import Log


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    return SmallRun(Relay(tmp_path / "run"))


@pytest.fixture
def committer(small: SmallRun) -> Committer:
    return Committer(small.store, small.log)


def keys(*items: int) -> list[Key]:
    return [Key(index) for index in items]


def test_one_commit_takes_all_that_waits(small: SmallRun, committer: Committer):
    """Files of two workers, one entry; the keys are settled, each process hears of its own last report."""
    committer.add("w0.1", [Written(1, small.write([0, 1])), Written(2, small.write([2]))])
    committer.add("w1.1", [Written(1, small.write([3], failed=[3]))])
    version = committer.state.version

    settled = committer.commit(now=10.0)

    assert sorted(settled) == keys(0, 1, 2, 3)
    assert committer.state.version == version + 1
    assert committer.state.counts == (3, 1, 0)
    assert [committer.acked(process) for process in ("w0.1", "w1.1", "w2.1")] == [2, 1, 0]


def test_reports_said_again_are_committed_once(small: SmallRun, committer: Committer):
    """A worker repeats what it has no word of: before the commit and after it."""
    report = Written(1, small.write([0]))
    committer.add("w0.1", [report])
    committer.add("w0.1", [report])
    committer.commit(now=10.0)
    version = committer.state.version

    committer.add("w0.1", [report])
    settled = committer.commit(now=20.0)

    assert (settled, committer.state.version, committer.state.counts.ok) == ([], version, 1)


def test_a_new_process_counts_its_reports_anew(small: SmallRun, committer: Committer):
    """Report 1 of w0.2 is not report 1 of w0.1."""
    committer.add("w0.1", [Written(1, small.write([0]))])
    committer.commit(now=10.0)

    committer.add("w0.2", [Written(1, small.write([1]))])

    assert committer.commit(now=20.0) == keys(1)
    assert committer.acked("w0.2") == 1


def test_commits_are_a_second_apart_unless_forced(small: SmallRun, committer: Committer):
    """Each commit is an object in a bucket: about one a second; the last one does not wait."""
    committer.add("w0.1", [Written(1, small.write([0]))])
    committer.commit(now=10.0)
    committer.add("w0.1", [Written(2, small.write([1]))])

    early = committer.commit(now=10.0 + COMMIT_S / 2)
    forced = committer.commit(now=10.0 + COMMIT_S / 2, force=True)

    assert (early, forced) == ([], keys(1))


def test_nothing_to_commit_writes_nothing(committer: Committer):
    """An idle run's log does not grow."""
    version = committer.state.version

    assert committer.commit(now=10.0, force=True) == []
    assert committer.state.version == version


def test_storage_that_fails_is_tried_again(small: SmallRun, committer: Committer):
    """Nothing is acknowledged until it is in the log; a second later the same files go in."""
    committer.add("w0.1", [Written(1, small.write([0]))])
    small.store.on_write = lose_request

    failed = committer.commit(now=10.0)
    acked = committer.acked("w0.1")
    settled = committer.commit(now=11.0)

    assert (failed, acked, settled) == ([], 0, keys(0))


def test_a_lost_reply_is_no_failure(small: SmallRun, committer: Committer):
    """The entry got through though the write raised: it counts once."""
    committer.add("w0.1", [Written(1, small.write([0]))])
    small.store.on_write = lose_reply

    assert committer.commit(now=10.0) == keys(0)
    assert small.log.replay().counts == (1, 0, 0)


def test_patience_with_storage_ends(small: SmallRun, committer: Committer):
    """After a minute of failures the driver is told, and told again by a forced commit."""
    committer.add("w0.1", [Written(1, small.write([0]))])
    for now in (10.0, 11.0, 9.0 + GIVE_UP_S):
        small.store.on_write = lose_request
        committer.commit(now=now)
    trouble = committer.trouble
    small.store.on_write = lose_request

    with pytest.raises(OSError, match="no answer"):
        committer.commit(now=10.0 + GIVE_UP_S)

    small.store.on_write = lose_request
    with pytest.raises(OSError, match="no answer"):
        committer.commit(now=10.5 + GIVE_UP_S, force=True)
    assert "no answer" in trouble


def test_a_commit_that_works_ends_the_trouble(small: SmallRun, committer: Committer):
    """The minute counts from the first failure after the last success."""
    committer.add("w0.1", [Written(1, small.write([0]))])
    for now, is_lost in ((10.0, True), (12.0, False), (200.0, True)):
        committer.add("w0.1", [Written(int(now), small.write([int(now)]))])
        if is_lost:
            small.store.on_write = lose_request
        committer.commit(now=now)

    assert committer.trouble
    assert committer.commit(now=201.0)
    assert committer.trouble == ""


def test_another_driver_fences_this_one(small: SmallRun, committer: Committer):
    """As soon as someone claimed the run nothing more is written."""
    committer.add("w0.1", [Written(1, small.write([0]))])
    rival = Log(small.store)
    rival.claim(small.spec.sha256)

    with pytest.raises(Fenced, match="owns this run"):
        committer.commit(now=10.0)

    assert rival.replay().counts.ok == 0


def test_files_nobody_reported_are_taken_in(small: SmallRun, committer: Committer):
    """What a dead worker wrote and had no time to report is paid for: its keys are settled."""
    small.write([4, 5], failed=[5])

    assert sorted(committer.adopt()) == keys(4, 5)
    assert committer.state.counts == (1, 1, 0)


def test_a_report_after_the_adoption_is_acknowledged(small: SmallRun, committer: Committer):
    """A live worker's file may be adopted before it reports it: counted once, and the worker may forget it."""
    info = small.write([4])
    committer.adopt()

    committer.add("w0.1", [Written(1, info)])
    settled = committer.commit(now=10.0)

    assert (settled, committer.acked("w0.1"), committer.state.counts) == (keys(4), 1, (1, 0, 0))


def test_a_broken_orphan_is_set_aside(small: SmallRun, committer: Committer):
    """It counts for nothing, its keys stay owed, and the bytes are kept for a look."""
    info = small.write([4])
    flip_byte(small.store, info.path, at=30)

    assert committer.adopt() == []
    assert committer.state.counts == (0, 0, 0)
    assert small.store.list("quarantine/") == [f"quarantine/{info.path}"]
