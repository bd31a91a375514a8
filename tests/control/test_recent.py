"""A count over whole seconds: what is older than the window is forgotten, the current second counts."""

from evalpipe.control.recent import RecentCount


def test_an_event_leaves_with_its_second():
    """Two seconds: an event at 0.9 still counts at 1.9 and no longer at 2.0."""
    count = RecentCount(2)
    count.add(now=0.9)
    count.add(now=1.5)

    assert [count.total(now=now) for now in (1.9, 2.0, 3.0)] == [2, 1, 0]


def test_cleared_it_starts_anew():
    """Nothing of before is subtracted later."""
    count = RecentCount(2)
    count.add(now=0.0)
    count.clear()
    count.add(now=1.0)

    assert (count.total(now=1.0), count.total(now=9.0)) == (1, 0)
