"""A worker's queue: first in, first out, retries that are due before new items, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.records import Example, Key, WorkItem
from evalpipe.runtime.queue import Task, TaskQueue

MANY = 99


def task(index: int, *, is_retry: bool = True) -> Task:
    return Task(WorkItem(Example(index, f"i{index}", "", None, {})), ready_at=0.0, is_retry=is_retry)


def queue(*indices: int) -> TaskQueue:
    made = TaskQueue()
    made.add(task(index, is_retry=False) for index in indices)
    return made


def pop_all(made: TaskQueue, *, now: float, retries: int = MANY) -> list[int]:
    """Take what may go, as the worker does: each retry that goes leaves one less."""
    popped = []
    while made.ready(now=now, retries=retries):
        one = made.pop(retries=retries)
        retries -= one.is_retry
        popped.append(one.key.item_index)
    return popped


def test_items_go_in_the_order_they_came():
    """Later shards go behind earlier ones."""
    made = queue(3, 1)
    made.add([task(2, is_retry=False)])

    assert pop_all(made, now=0.0) == [3, 1, 2]


def test_a_retry_waits_for_its_time():
    """Not due: not counted as ready, but still in hand; due at the very instant."""
    made = queue()
    made.again(task(1), at=5.0)

    assert (made.ready(now=4.999, retries=MANY), len(made), made.next_due()) == (0, 1, 5.0)
    assert (made.ready(now=5.0, retries=MANY), len(made), made.next_due()) == (1, 1, None)


def test_due_retries_go_first_and_in_the_order_of_their_times():
    """A retry is older than any new item; among retries the one due first goes first."""
    made = queue(10, 11)
    made.again(task(2), at=2.0)
    made.again(task(1), at=1.0)
    made.again(task(3), at=3.0)

    assert pop_all(made, now=2.5) == [1, 2, 10, 11]
    assert made.next_due() == 3.0


def test_retries_due_at_the_same_time_keep_their_order():
    """Equal times are no reason to compare tasks, which have no order."""
    made = queue()
    for index in (5, 4, 6):
        made.again(task(index), at=1.0)

    assert pop_all(made, now=1.0) == [5, 4, 6]


def test_without_a_budget_retries_wait_and_new_items_go():
    """Nothing fails for it: they are in hand, and go as soon as the budget allows."""
    made = queue(10, 11)
    for index in (1, 2):
        made.again(task(index), at=0.0)

    assert pop_all(made, now=1.0, retries=0) == [10, 11]
    assert (len(made), made.ready(now=1.0, retries=1)) == (2, 1)
    assert pop_all(made, now=1.0, retries=1) == [1]


def test_what_was_paused_needs_no_budget():
    """A rejected item goes before new ones; rejections are the law's matter."""
    made = queue(10)
    made.again(task(1, is_retry=False), at=0.0)

    assert pop_all(made, now=1.0, retries=0) == [1, 10]


def test_dropping_all_returns_every_key():
    """Ready ones and those that wait for another try; the queue is empty after it."""
    made = queue(1, 2)
    made.again(task(3), at=9.0)

    keys = made.drop_all()

    assert sorted(keys) == [Key(1), Key(2), Key(3)]
    assert (len(made), made.ready(now=99.0, retries=MANY), made.next_due()) == (0, 0, None)


def test_an_empty_queue_has_nothing_to_pop():
    """The loop asks `ready` first; a pop without it is a bug that shows."""
    with pytest.raises(IndexError):
        queue().pop(retries=MANY)


@given(st.lists(st.one_of(st.just("pop"), st.floats(0.0, 10.0)), max_size=60))
def test_nothing_is_lost_or_sent_twice(steps):
    """Any mix of new items, retries and pops: in hand + popped is what was put in, each once."""
    made, put, popped = TaskQueue(), 0, []
    for now, step in enumerate(steps):
        if step == "pop":
            if made.ready(now=now, retries=now % 3):
                popped.append(made.pop(retries=now % 3).key.item_index)
        elif put % 2:
            made.again(task(put, is_retry=put % 4 == 1), at=now + step)
            put += 1
        else:
            made.add([task(put, is_retry=False)])
            put += 1

    assert len(made) + len(popped) == put
    assert sorted([*popped, *(key.item_index for key in made.drop_all())]) == list(range(put))
