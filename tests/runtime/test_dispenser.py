"""Shards: every owed item is out once, or left, or done."""

from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.records import Example, Key
from evalpipe.runtime.dispenser import Dispenser


def example(index: int) -> Example:
    return Example(index, f"item-{index}", "", None, {})


def dispenser(count: int, *, repeats: int = 1, done: frozenset[Key] = frozenset(), opened: bool = True) -> Dispenser:
    owed = count * repeats - len(done)
    made = Dispenser(range(count), repeats=repeats, is_done=done.__contains__, load=example, owed=owed, shard_size=4)
    if opened:
        made.open()
    return made


def keys_of(shards) -> list[Key]:
    return [item.key for shard in shards for item in shard.items]


def test_only_eight_go_before_the_first_answer():
    """A wrong key or model meets eight items, whatever the workers want."""
    made = dispenser(100, opened=False)

    first = keys_of(made.take("w0", 50)) + keys_of(made.take("w1", 50))
    made.open()
    second = keys_of(made.take("w1", 50))

    assert len(first) == 8
    assert len(second) == 50


def test_done_keys_are_not_handed_out():
    """A resumed run sends only what the log lacks, repeats counted one by one."""
    made = dispenser(3, repeats=2, done=frozenset({Key(0, 0), Key(1, 1)}))

    keys = keys_of(made.take("w0", 100))

    assert keys == [Key(0, 1), Key(1, 0), Key(2, 0), Key(2, 1)]


def test_a_dead_workers_items_go_first_to_the_next():
    """What a dead worker had and had not got into the log is handed out again before anything new."""
    made = dispenser(40)
    had = keys_of(made.take("w0", 10))
    made.settle(had[:3])

    returned = made.give_back("w0")

    assert returned == 7
    assert keys_of(made.take("w1", 7)) == had[3:]


def test_shards_shrink_towards_the_end():
    """The last items are spread: no shard holds more than its share of what is left."""
    made = dispenser(16)

    sizes = [len(shard.items) for shard in made.take("w0", 16, workers=2)]

    assert sizes == [4, 3, 2, 1, 1, 1, 1, 1, 1, 1]


@given(
    st.lists(st.tuples(st.sampled_from(["take", "settle", "die"]), st.integers(0, 2), st.integers(1, 9)), max_size=40)
)
@settings(max_examples=100, deadline=None)
def test_nothing_is_lost_or_out_twice(steps):
    """Under any order of taking, committing and dying, left + out + done stays the number of items."""
    made, done, out = dispenser(30), set(), {}
    for action, number, count in steps:
        worker = f"w{number}"
        if action == "take":
            for key in keys_of(made.take(worker, count)):
                assert key not in out and key not in done
                out[key] = worker
        elif action == "settle":
            finished = [key for key, holder in out.items() if holder == worker][:count]
            made.settle(finished)
            done.update(finished)
            for key in finished:
                del out[key]
        else:
            made.give_back(worker)
            out = {key: holder for key, holder in out.items() if holder != worker}

    assert made.left + made.out + len(done) == 30
    assert made.out == len(out)
