"""The door after a refusal: one probe at a time, advice that counts down is believed, any other is not."""

from __future__ import annotations

import math

import pytest

from evalpipe.control.door import Door


def probes(door: Door, *, until: float, advice: list[float | None]) -> list[float]:
    """Send each probe as soon as it may go, have it refused at once; return when they went. Steps of 0.1 s."""
    sent, answers = [], iter(advice)
    for step in range(round(until * 10)):
        now = step / 10
        if door.can_probe(now=now):
            door.on_probe(now=now)
            sent.append(now)
            door.shut(advice_s=next(answers, None), now=now)
    return sent


def shut(*, advice_s: float | None = None) -> Door:
    door = Door()
    door.shut(advice_s=advice_s, now=0.0)
    return door


@pytest.mark.parametrize("advice_s", [None, 0.0, -5.0, math.nan, math.inf])
def test_without_usable_advice_the_wait_doubles_up_to_five_seconds(advice_s: float | None):
    """Nothing spins and nothing freezes: probes after 1, 2, 4, 5, 5 s, whatever nonsense is told."""
    sent = probes(shut(advice_s=advice_s), until=25, advice=[advice_s] * 9)

    assert sent == pytest.approx([1.0, 3.0, 7.0, 12.0, 17.0, 22.0])


def test_advice_that_never_changes_is_not_waited_for():
    """89 s on every refusal: the probes go as if nothing had been said."""
    assert probes(shut(advice_s=89.0), until=20, advice=[89.0] * 9) == pytest.approx([1.0, 3.0, 7.0, 12.0, 17.0])


@pytest.mark.parametrize("rounding", [lambda s: s, math.ceil, math.floor], ids=["exact", "up", "down"])
def test_advice_that_counts_down_is_waited_for(rounding):
    """A window that opens at 40 s: after one or two probes that agree, the next goes when it opens."""
    door, sent = Door(), []
    door.shut(advice_s=rounding(40.0), now=0.0)
    for step in range(420):
        now = step / 10
        if door.can_probe(now=now):
            sent.append(now)
            door.on_probe(now=now)
            door.shut(advice_s=rounding(40.0 - now), now=now)

    assert len(sent) <= 4
    assert next(now for now in sent if now > 4) == pytest.approx(40.0, abs=1.1)


def test_not_even_a_countdown_freezes():
    """An hour, told twice in agreement: after two minutes it is asked again."""
    door = shut(advice_s=3600.0)
    sent = probes(door, until=200, advice=[3599.0, 3479.0, 3359.0])

    assert sent[:2] == pytest.approx([1.0, 121.0])


def test_it_opens_when_the_probe_was_not_refused():
    """A probe that nobody refused within the patience was accepted, at the instant it began."""
    door = shut()
    before = door.open(patience_s=0.5, now=0.9)
    door.on_probe(now=1.0)
    waiting = door.open(patience_s=0.5, now=1.4)
    opened = door.open(patience_s=0.5, now=1.5)

    assert (before, waiting, opened, door.is_closed) == (None, None, 1.0, False)


def test_refusals_of_what_was_out_before_do_not_count():
    """Ten requests were out when it was shut: their refusals say nothing new, and the probe goes in time."""
    door = shut()
    for step in range(1, 10):
        door.shut(advice_s=None, now=step / 10)

    assert door.can_probe(now=1.0)


def test_needless_advice_is_noted():
    """89 s was the advice, and a request was accepted after one: that is worth telling."""
    door = shut(advice_s=89.0)
    door.on_probe(now=1.0)
    door.open(patience_s=0.1, now=2.0)

    assert door.needless_s == 89.0
