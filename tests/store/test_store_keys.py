"""Key sets as ranges, and the done set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.errors import StateError
from evalpipe.records import Key
from evalpipe.store.keys import ANSWERED, FAILED, FEW, OWED, DoneSet, KeySet

KEYS = st.sets(st.builds(Key, st.integers(0, 30), st.integers(0, 1), st.integers(0, 1)))


def test_neighbours_are_stored_as_one_range():
    """Ranges are inclusive and grouped by repeat and generation."""
    keys = KeySet.from_keys([Key(3), Key(1), Key(2), Key(7), Key(0, 1, 2)])

    assert keys.to_json() == {"0/0": [[1, 3], [7, 7]], "1/2": [[0, 0]]}
    assert len(keys) == 5


def test_many_ranges_are_packed():
    """Few are pairs that people can read, many are text; a log that spelled all as pairs is read as the same set."""
    many = KeySet.from_keys(Key(2 * i) for i in range(FEW + 1))

    (spelled,) = many.to_json().values()

    assert isinstance(spelled, str)
    assert KeySet.from_json({"0/0": [[2 * i, 2 * i] for i in range(FEW + 1)]}) == many
    assert KeySet.from_json(many.to_json()) == many


@pytest.mark.parametrize("keys", [[Key(1), Key(1)], [Key(-1)]])
def test_a_key_twice_or_negative_is_refused(keys: list[Key]):
    """A set that hides a second row of a key would hide a result."""
    with pytest.raises(StateError, match="distinct and not negative"):
        KeySet.from_keys(keys)


@given(KEYS, KEYS)
def test_key_sets_behave_as_sets(a: set[Key], b: set[Key]):
    """Round trip, size, union and difference agree with Python's sets."""
    left, right = KeySet.from_keys(a), KeySet.from_keys(b)

    assert set(left) == a
    assert KeySet.from_json(left.to_json()) == left
    assert (len(left), bool(left)) == (len(a), bool(a))
    assert set(left.union(right)) == a | b
    assert set(left.minus(right)) == a - b


def test_the_first_mark_stays():
    """A later mark of the same key is returned as a loser and changes nothing."""
    done = DoneSet()
    done.mark(KeySet.from_keys([Key(1), Key(2)]), FAILED)

    losers = done.mark(KeySet.from_keys([Key(2), Key(3)]), ANSWERED)

    assert set(losers) == {Key(2)}
    assert done.codes((0, 0), items=5).tolist() == [OWED, FAILED, FAILED, ANSWERED, OWED]
    assert (done.count(ANSWERED), done.count(FAILED)) == (1, 2)


def test_released_keys_are_owed_and_no_longer_counted():
    """Counts are kept beside the codes and agree with them, in a copy too."""
    done = DoneSet()
    done.mark(KeySet.from_keys([Key(1), Key(2)]), FAILED)
    done.mark(KeySet.from_keys([Key(3)]), ANSWERED)
    before = done.copy()

    done.release(KeySet.from_keys([Key(2), Key(3)]))

    assert (done.count(ANSWERED), done.count(FAILED)) == (0, 1)
    assert (before.count(ANSWERED), before.count(FAILED)) == (1, 2)


def test_an_answer_of_any_generation_is_seen_above_a_failure():
    """A failed retry never replaces an answer, and a later answer replaces a failure."""
    done = DoneSet()
    done.mark(KeySet.from_keys([Key(0), Key(1, 0, 1)]), ANSWERED)
    done.mark(KeySet.from_keys([Key(0, 0, 1), Key(1), Key(2)]), FAILED)

    assert done.outcomes(repeat=0, items=4).tolist() == [ANSWERED, ANSWERED, FAILED, OWED]


def test_ten_million_items_take_ten_megabytes():
    """Resuming the largest run must fit in memory beside everything else."""
    done = DoneSet()

    done.mark(KeySet({(0, 0): [[0, 9_999_999]]}), ANSWERED)

    assert done.codes((0, 0), items=10_000_000).nbytes == 10_000_000
    assert len(str(KeySet({(0, 0): [[0, 9_999_999]]}).to_json())) < 40
