"""Levels: what was in flight over a life, what each level gets done, how sure that is."""

from __future__ import annotations

import pytest

from evalpipe.control.levels import History, Level, Levels, pooled


def history(*notes: tuple[float, float]) -> History:
    made = History()
    for at, in_flight in notes:
        made.note(in_flight, now=at)
    return made


def test_a_life_is_averaged_over_what_was_in_flight():
    """Ten for two seconds, rising to thirty within the third: the last second held twenty, all three 13.3."""
    made = history((0.0, 10), (2.0, 10), (3.0, 30))

    assert made.mean(1.0, now=3.0) == pytest.approx(20.0)
    assert made.mean(3.0, now=3.0) == pytest.approx(40.0 / 3)


def test_a_life_longer_than_the_history_is_averaged_over_what_is_known():
    """A resumed law begins with no past."""
    assert history((5.0, 8), (6.0, 8)).mean(100.0, now=6.0) == pytest.approx(8.0)
    assert history((5.0, 8)).mean(100.0, now=5.0) == 8


def test_the_least_of_a_span():
    """The lowest of the steps inside it; 0 while less than the span is known."""
    made = history((0.0, 40), (1.0, 40), (2.0, 10), (3.0, 10), (4.0, 40))

    assert made.least(3.5, now=4.0) == pytest.approx(10.0)
    assert made.least(0.5, now=4.0) == pytest.approx(25.0)
    assert made.least(5.0, now=4.0) == 0.0


def test_time_that_stands_still_keeps_the_newest():
    """Two notes at one instant are one."""
    made = history((0.0, 10), (1.0, 10), (1.0, 30), (2.0, 30))

    assert made.mean(1.0, now=2.0) == pytest.approx(30.0)


def test_a_long_run_forgets_its_beginning():
    """After hours the mean of the last second is still right."""
    made = History()
    for tick in range(30_000):
        made.note(50 if tick < 29_000 else 20, now=tick * 0.1)

    assert made.mean(1.0, now=2999.9) == pytest.approx(20.0)
    assert made.mean(1e6, now=2999.9) == pytest.approx(45, abs=5)


def test_work_per_second_follows_from_littles_law():
    """Twenty in flight, 2 s for an answer of 100 units: 1,000 a second, whatever the mix of lengths."""
    level = Level()
    for work in (50.0, 100.0, 400.0):
        level.add(20.0, work, work / 50.0, at=3.0)

    assert (level.in_flight, level.per_work_s, level.rate) == pytest.approx((20.0, 0.02, 1000.0))
    assert level.at == 3.0


def test_what_agrees_is_surer_than_what_does_not():
    """Equal answers have an error of a few per cent, unequal ones a larger one, more of them a smaller one."""
    even, uneven, more = Level(), Level(), Level()
    for seconds in (1.0, 1.0, 1.0, 1.0):
        even.add(8.0, 10.0, seconds, at=0.0)
    for seconds in (0.5, 1.5, 0.5, 1.5):
        uneven.add(8.0, 10.0, seconds, at=0.0)
    for seconds in (0.5, 1.5) * 8:
        more.add(8.0, 10.0, seconds, at=0.0)

    assert even.error < 0.05 < more.error < uneven.error
    assert uneven.error == pytest.approx(0.25, rel=0.15)


def test_levels_are_a_tenth_apart_and_need_three_answers():
    """16 and 16.5 are one level, 18 another; two answers are hearsay."""
    levels = Levels([])
    for in_flight in (16.0, 16.5, 16.0, 18.0, 18.0):
        levels.add(in_flight, 10.0, 1.0, at=0.0)

    (known,) = levels.known()
    assert known.in_flight == pytest.approx(16.17, abs=0.01)


def test_the_best_rate_is_a_sure_one():
    """Of the levels up to the one asked for, less what is unsure."""
    levels = Levels([])
    for in_flight in (8.0, 16.0, 32.0):
        for _ in range(10):
            levels.add(in_flight, 10.0, 1.0, at=0.0)

    assert levels.best_rate(up_to=20.0) == pytest.approx(160.0, rel=0.05)
    assert levels.best_rate(up_to=20.0) < 160.0
    assert levels.best_rate(up_to=4.0) == 0.0


def test_the_list_is_the_state():
    """What was learned goes into the list that was given, and a twin made of it knows as much."""
    state: list[Level] = []
    levels = Levels(state)
    for _ in range(5):
        levels.add(16.0, 10.0, 1.0, at=0.0)

    twin = Levels(state)
    twin.add(16.0, 10.0, 1.0, at=1.0)

    assert len(state) == 1
    assert levels.known()[0].count > 5


def test_pooled_levels_are_one():
    """Counts and sums add up; the level is between them."""
    low, high = Level(), Level()
    low.add(10.0, 10.0, 1.0, at=1.0)
    high.add(20.0, 10.0, 1.0, at=2.0)

    both = pooled([low, high])

    assert (both.in_flight, both.count, both.at) == (15.0, 2.0, 2.0)
