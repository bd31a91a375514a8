"""Two drivers, one log: who wins, who is fenced, and what a lost reply does."""

from __future__ import annotations

import dataclasses
import errno

import pytest
from store_rows import SPEC, Relay, SmallRun, flip_byte, lose_reply, lose_request

from evalpipe.errors import Fenced, StateError
from evalpipe.store import checkpoint
from evalpipe.store.entry import Entry, entry_key
from evalpipe.store.local import LocalStore
from evalpipe.store.log import CHECKPOINT_EVERY, Log, read_state


def test_a_commit_is_seen_by_every_reader(run: SmallRun):
    """What was committed is done; the claim is entry 1."""
    version = run.log.commit([run.write(range(5), failed=[4])])

    state = read_state(run.store)
    assert (version, state.version, state.epoch) == (2, 2, 1)
    assert state.counts == (4, 1, 0)
    assert state.to_json() == run.log.state.to_json()


def test_a_new_claim_fences_the_old_driver(run: SmallRun):
    """The old driver's next commit writes nothing and tells it to stop."""
    late = run.write([1])
    newcomer = Log(run.store)

    epoch = newcomer.claim(SPEC.sha256)

    assert epoch == 2
    with pytest.raises(Fenced, match="owns this run since epoch 2, ours was 1"):
        run.log.commit([late])
    with pytest.raises(Fenced):
        run.log.refresh()
    assert read_state(run.store).counts == (0, 0, 0)


def test_a_claim_goes_through_between_commits_of_the_living(tmp_path):
    """A commit that takes the number the newcomer wanted only delays it."""
    relay = Relay(tmp_path / "run")
    run = SmallRun(relay)
    segment = run.write([1])
    newcomer = Log(relay)

    def old_driver_first(write):
        run.log.commit([segment])
        return write()

    relay.on_write = old_driver_first
    epoch = newcomer.claim(SPEC.sha256)

    assert epoch == 2
    assert newcomer.state.counts.ok == 1


def test_of_two_claims_at_once_the_loser_stops(tmp_path):
    """It does not fence the winner in turn: they would take the run from each other for ever."""
    relay = Relay(tmp_path / "run")
    winner, loser = Log(relay), Log(relay)

    def winner_first(write):
        winner.claim(SPEC.sha256)
        return write()

    relay.on_write = winner_first
    with pytest.raises(Fenced, match="at the same moment"):
        loser.claim(SPEC.sha256)

    winner.refresh()
    assert read_state(relay).writer == winner.writer


def test_a_commit_with_a_lost_reply_counts_once(run: SmallRun):
    """The entry is there and is ours."""
    segment = run.write([1, 2])
    run.store.on_write = lose_reply

    version = run.log.commit([segment])

    assert version == run.log.state.version == 2
    assert run.log.state.counts == (2, 0, 0)


def test_a_claim_with_a_lost_reply_is_ours(tmp_path):
    """The nonce in the entry says who wrote it."""
    relay = Relay(tmp_path / "run")
    relay.on_write = lose_reply
    log = Log(relay)

    assert log.claim(SPEC.sha256) == 1
    assert read_state(relay).writer == log.writer


def test_a_write_that_arrives_after_it_was_given_up_counts_once(run: SmallRun):
    """The second try finds the first one's entry and adds nothing."""
    segment = run.write([1])
    held: list = []

    def hold(write):
        held.append(write)
        raise TimeoutError("no answer")

    run.store.on_write = hold
    with pytest.raises(TimeoutError):
        run.log.commit([segment])
    held.pop()()

    assert run.log.commit([segment]) == 2
    assert run.log.state.counts == (1, 0, 0)


def test_a_failed_commit_can_be_repeated(run: SmallRun):
    """Nothing was written, nothing is known to be done."""
    segment = run.write([1])
    run.store.on_write = lose_request

    with pytest.raises(TimeoutError):
        run.log.commit([segment])

    assert run.log.state.counts.ok == 0
    assert run.log.commit([segment]) == 2


def test_a_report_that_comes_twice_is_committed_once(run: SmallRun):
    """Also when both copies come together."""
    segment = run.write([1])

    versions = [run.log.commit([segment, segment]), run.log.commit([segment])]

    assert versions == [2, 2]
    assert run.log.state.duplicate_rows == 0


def test_the_second_result_of_a_key_is_ignored(run: SmallRun):
    """Two workers answered the same item: the first commit is the result."""
    run.log.commit([run.write([1], text="first"), run.write([1, 2], text="second")])

    assert run.log.state.counts == (2, 0, 1)


def test_another_spec_cannot_claim(run: SmallRun):
    """A run is never mixed from two settings."""
    with pytest.raises(StateError, match="other settings or data"):
        Log(run.store).claim("e" * 64)


def test_writing_needs_a_claim(store: LocalStore):
    """A reader's Log cannot commit by mistake."""
    with pytest.raises(StateError, match="claim the run"):
        Log(store).commit()


def test_a_commit_that_would_lose_results_is_not_written(run: SmallRun):
    """It would end the log for every reader."""
    segment = run.write([1])
    run.log.commit([segment])

    with pytest.raises(StateError, match="take results away"):
        run.log.commit(remove=[segment.path])

    assert read_state(run.store).version == 2


def test_a_missing_entry_is_an_error_not_an_end(run: SmallRun):
    """Otherwise the results of all later entries would silently vanish."""
    for item in range(3):
        run.log.commit([run.write([item])])
    run.store.delete(entry_key(3))

    with pytest.raises(StateError, match="log entry 3 is missing but entry 4 exists"):
        read_state(run.store)


def test_every_bit_flip_in_an_entry_is_noticed(run: SmallRun):
    """Each byte in turn: no flipped entry is read."""
    run.log.commit([run.write([1])])
    key = entry_key(2)

    for at in range(len(run.store.get(key))):
        flip_byte(run.store, key, at=at)
        with pytest.raises(StateError, match=r"0000000002\.json"):
            read_state(run.store)
        flip_byte(run.store, key, at=at)


def test_entries_survive_their_spelling(run: SmallRun):
    """What is read equals what was written."""
    entry = Entry(5, 2, "w", claim="s", add=(run.write([1, 2], failed=[2]),), remove=("x",), wall=1.5, mono=2.5)

    assert Entry.from_bytes(entry.to_bytes(), key="k") == entry


def commit_up_to_checkpoint(run: SmallRun) -> None:
    """A real segment, then as many commits of made-up attempts files as it takes; nobody reads those here."""
    segment = run.write(range(5), failed=[1])
    run.log.commit([segment, run.write([4])])
    dummy = dataclasses.replace(segment, kind="attempts", ok=type(segment.ok)(), failed=type(segment.ok)())
    while run.log.state.version < CHECKPOINT_EVERY:
        run.log.commit([dataclasses.replace(dummy, path=f"attempts/{run.log.state.version}")])


def test_replay_from_a_checkpoint_equals_replay_from_the_start(run: SmallRun):
    """The shortcut is taken, and adds up to the same."""
    commit_up_to_checkpoint(run)
    run.log.commit([run.write([9])])

    shortcut = checkpoint.load_newest(run.store)

    assert shortcut is not None and shortcut.version == CHECKPOINT_EVERY
    assert read_state(run.store).to_json() == run.log.state.to_json()


def test_a_damaged_checkpoint_is_passed_over(run: SmallRun):
    """It is derived: the log is read instead."""
    commit_up_to_checkpoint(run)
    (key,) = run.store.list("_ckpt/")

    for at in (0, 40, len(run.store.get(key)) - 1):
        flip_byte(run.store, key, at=at)
        assert read_state(run.store).to_json() == run.log.state.to_json()
        flip_byte(run.store, key, at=at)


def test_a_checkpoint_beyond_the_log_is_an_error(run: SmallRun):
    """The end of the log was lost, which a listing of the log alone cannot tell."""
    commit_up_to_checkpoint(run)
    run.store.delete(entry_key(CHECKPOINT_EVERY))

    with pytest.raises(StateError, match="log entry that is gone"):
        read_state(run.store)


def test_an_entry_whose_write_failed_is_made_durable_before_it_is_believed(run: SmallRun):
    """Its name is there, its folder's fsync failed: `refresh` writes again first, or a power cut could take it back."""
    info, written = run.write([0]), []

    def write_and_fail(write) -> bool:
        write()
        raise OSError(errno.EIO, "the folder's fsync failed")

    def note(write) -> bool:
        written.append(run.log.state.version)
        return write()

    run.store.on_write = write_and_fail
    with pytest.raises(OSError, match="fsync"):
        run.log.commit([info])
    before, run.store.on_write = run.log.state.version, note
    run.log.refresh()

    assert written == [before]
    assert run.log.state.knows(info.path)
