"""LogState against a plain dict, and what it refuses."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evalpipe.errors import StateError
from evalpipe.records import Key
from evalpipe.store.entry import Entry
from evalpipe.store.keys import ANSWERED, FAILED, OWED, KeySet
from evalpipe.store.segments import SegmentInfo
from evalpipe.store.state import LogState

CLAIM = Entry(version=1, epoch=1, writer="a", claim="spec")


def info(path: str, *, ok: list[Key] | None = None, failed: list[Key] | None = None) -> SegmentInfo:
    answered, lost = KeySet.from_keys(ok or []), KeySet.from_keys(failed or [])
    return SegmentInfo(path, rows=len(answered) + len(lost), bytes=1, sha256="0", ok=answered, failed=lost)


def claimed() -> LogState:
    state = LogState()
    state.apply(CLAIM)
    return state


def follow_up(state: LogState, *, add: tuple[SegmentInfo, ...] = (), remove: tuple[str, ...] = ()) -> Entry:
    return Entry(
        version=state.version + 1, epoch=state.epoch, writer=state.writer, add=add, remove=remove, before=state.counts
    )


def test_the_first_commit_of_a_key_wins():
    """A failure that came first stays; the answer that came second is counted as a duplicate."""
    state = claimed()
    state.apply(follow_up(state, add=(info("a", ok=[Key(1)], failed=[Key(2)]),)))

    state.apply(follow_up(state, add=(info("b", ok=[Key(1), Key(2), Key(3)]),)))

    assert state.codes(repeat=0, generation=0, items=5).tolist() == [OWED, ANSWERED, FAILED, ANSWERED, OWED]
    assert state.counts == (2, 1, 2)
    assert set(state.files["b"].ignored) == {Key(1), Key(2)}


def test_compaction_hands_results_over_and_promotes_nobody():
    """When the winner's file is merged, the loser in another file stays a loser."""
    state = claimed()
    state.apply(follow_up(state, add=(info("a", ok=[Key(1)]), info("b", failed=[Key(1)]))))

    state.apply(follow_up(state, add=(info("part", ok=[Key(1)]),), remove=("a",)))

    assert state.counts == (1, 0, 1)
    assert set(state.files["b"].ignored) == {Key(1)}
    assert state.knows("a")
    state.validate()


def test_visible_is_the_newest_answer_else_the_newest_failure():
    """Item 0: answer, then failure. Item 1: failure, then answer. Item 2: two failures. Item 3: nothing."""
    state = claimed()
    state.apply(follow_up(state, add=(info("a", ok=[Key(0)], failed=[Key(1), Key(2)]),)))
    state.apply(follow_up(state, add=(info("b", ok=[Key(1, 0, 1)], failed=[Key(0, 0, 1), Key(2, 0, 1)]),)))

    assert state.visible_generations(repeat=0, items=4).tolist() == [0, 1, 1, -1]
    assert state.outcomes(repeat=0, items=4).tolist() == [ANSWERED, ANSWERED, FAILED, OWED]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Entry(version=4, epoch=1, writer="a"), "entry 4 cannot follow entry 2"),
        (Entry(version=3, epoch=1, writer="b"), "by b in epoch 1, but a owns epoch 1"),
        (Entry(version=3, epoch=2, writer="a"), "by a in epoch 2"),
        (Entry(version=3, epoch=3, writer="b", claim="spec"), "claims epoch 3 after epoch 1"),
        (
            Entry(version=3, epoch=2, writer="b", claim="other"),
            "other settings or data: spec spec in the log, other now",
        ),
        (Entry(version=3, epoch=1, writer="a", add=(info("a", ok=[Key(9)]),)), "a second time: .'a'."),
        (Entry(version=3, epoch=1, writer="a", remove=("x",)), "do not count: .'x'."),
        (Entry(version=3, epoch=1, writer="a", remove=("a",)), "would take results away"),
        (
            Entry(version=3, epoch=1, writer="a", add=(info("p", failed=[Key(1)]),), remove=("a",)),
            "would take results away",
        ),
    ],
)
def test_an_entry_that_cannot_follow_is_refused(entry: Entry, text: str):
    """And nothing has changed: the done set never shrinks."""
    state = claimed()
    state.apply(follow_up(state, add=(info("a", ok=[Key(1)]),)))
    before = state.to_json()

    with pytest.raises(StateError, match=text):
        state.apply(dataclasses.replace(entry, before=state.counts))

    assert state.to_json() == before
    state.validate()


def test_a_writer_that_counted_otherwise_is_noticed():
    """An entry written after another history does not fit this one."""
    state = claimed()
    state.apply(follow_up(state, add=(info("a", ok=[Key(1)]),)))

    with pytest.raises(StateError, match="not the one its writer saw"):
        state.apply(dataclasses.replace(follow_up(state), before=CLAIM.before))


KEY = st.builds(Key, st.integers(0, 12), st.integers(0, 1), st.integers(0, 1))


class LogMachine(RuleBasedStateMachine):
    """Commits, compactions, claims and JSON round trips in any order, beside a dict of first results."""

    def __init__(self) -> None:
        super().__init__()
        self.state = claimed()
        self.first: dict[Key, int] = {}
        self.duplicates = 0
        self.names = iter(range(10**6))

    @rule(ok=st.sets(KEY, max_size=6), failed=st.sets(KEY, max_size=4))
    def commit(self, ok: set[Key], failed: set[Key]) -> None:
        failed -= ok
        self.state.apply(follow_up(self.state, add=(info(f"s{next(self.names)}", ok=[*ok], failed=[*failed]),)))
        for keys, code in ((ok, ANSWERED), (failed, FAILED)):
            for key in keys:
                self.duplicates += key in self.first
                self.first.setdefault(key, code)

    @precondition(lambda self: self.state.files)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        paths = data.draw(st.lists(st.sampled_from(sorted(self.state.files)), unique=True, min_size=1))
        won = [key for path in paths for key in self.state.files[path].winners]
        part = info(
            f"p{next(self.names)}",
            ok=[key for key in won if self.first[key] == ANSWERED],
            failed=[key for key in won if self.first[key] == FAILED],
        )
        self.state.apply(follow_up(self.state, add=(part,), remove=tuple(paths)))

    @rule(writer=st.sampled_from("abc"))
    def claim(self, writer: str) -> None:
        epoch = self.state.epoch + 1
        entry = dataclasses.replace(follow_up(self.state), epoch=epoch, writer=writer, claim="spec")
        self.state.apply(entry)

    @rule()
    def reload(self) -> None:
        self.state = LogState.from_json(self.state.to_json())

    @invariant()
    def equals_the_dict(self) -> None:
        found = {
            Key(item, repeat, generation): int(code)
            for repeat in (0, 1)
            for generation in (0, 1)
            for item, code in enumerate(self.state.codes(repeat=repeat, generation=generation, items=13))
            if code != OWED
        }
        assert found == self.first
        assert self.state.duplicate_rows == self.duplicates
        self.state.validate()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
