"""Shards: every owed item is out once, or left, or done."""

from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.records import Example, Key
from evalpipe.runtime.agenda import Agenda
from evalpipe.runtime.dispenser import Dispenser


def example(index: int) -> Example:
    return Example(index, f"item-{index}", "", None, {})


def dispenser(count: int, *, done: frozenset[Key] = frozenset(), opened: bool = True) -> Dispenser:
    agenda = Agenda(map(Key, range(count)), count)
    made = Dispenser(agenda, is_done=done.__contains__, load=example, shard_size=4)
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


def test_first_items_found_in_a_dead_workers_file_make_room():
    """Nobody told of an answer, so the gate is shut; eight others may go all the same."""
    made = dispenser(100, opened=False)
    first = keys_of(made.take("w0", 50))
    made.settle(first)

    assert len(keys_of(made.take("w1", 50))) == 8


def test_keys_that_got_a_result_meanwhile_are_passed_over():
    """A dead worker's file was found after its items had come back: they are neither sent nor owed."""
    made = dispenser(4, done=frozenset({Key(0), Key(2)}))

    keys = keys_of(made.take("w0", 100))

    assert keys == [Key(1), Key(3)]
    assert (made.left, made.out) == (0, 2)


def test_a_dead_workers_items_go_first_to_the_next():
    """What a dead worker had and had not got into the log is handed out again before anything new."""
    made = dispenser(40)
    had = keys_of(made.take("w0", 10))
    made.settle(had[:3])

    guilty = made.take_back("w0", is_suspect=True)

    assert guilty == []
    assert keys_of(made.take("w1", 7)) == had[3:]


def test_a_release_said_again_takes_nothing_from_others():
    """A worker repeats what it released while another has it: it is not dealt a third time."""
    made = dispenser(4)
    had = keys_of(made.take("w0", 4))
    made.release(had, worker="w0")
    made.take("w1", 4)

    returned = made.release(had, worker="w0")

    assert (returned, made.take("w2", 4)) == (0, [])


def test_an_item_that_kills_every_worker_is_found():
    """Whoever holds item 13 dies: no other item is set aside, and few workers die for it."""
    made, guilty, deaths = dispenser(64), [], 0
    while not (made.is_done or guilty):
        held = keys_of(made.take("w0", 32))
        if Key(13) in held:
            deaths += 1
            guilty = made.take_back("w0", is_suspect=True)
        else:
            made.settle(held)

    assert guilty == [Key(13)]
    assert deaths <= 4


def test_workers_killed_from_outside_convict_nobody():
    """Four workers with a full hand die one after the other: their items go out again, all of them."""
    made = dispenser(32)
    made.take("w0", 32)
    guilty = []
    for _ in range(4):
        guilty += made.take_back("w0", is_suspect=True)
        made.take("w0", 32)

    assert guilty == []
    assert made.left + made.out == 32


def test_a_lost_lease_is_no_death():
    """A worker that was cut off again and again is no reason to suspect what it had, be it a single item."""
    made = dispenser(1)
    for _ in range(6):
        made.take("w0", 1)
        guilty = made.take_back("w0", is_suspect=False)

    assert (guilty, made.left) == ([], 1)


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
            for key in made.take_back(worker, is_suspect=True):
                done.add(key)
                made.settle([key])
            out = {key: holder for key, holder in out.items() if holder != worker}

    assert made.left + made.out + len(done) == 30
    assert made.out == len(out)
