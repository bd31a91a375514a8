"""A refused key ends a run that never worked at once, and one that did only after it was tried again."""

import pytest

from evalpipe.runtime.keywatch import KeyWatch


def refuse(watch: KeyWatch, *, now: float) -> bool:
    return watch.on_refusal(watch.on_send(), now=now)


def worked() -> KeyWatch:
    watch = KeyWatch()
    watch.on_answer(watch.on_send())
    return watch


def test_three_refusals_before_any_answer_are_final():
    """Nothing is paused for them: a wrong key is told in seconds."""
    watch = KeyWatch()

    said = [refuse(watch, now=0.0), refuse(watch, now=0.0), watch.can_send(now=0.0), refuse(watch, now=0.0)]

    assert said == [False, False, True, True]


def test_a_key_that_worked_is_probed_three_times_within_twenty_seconds():
    """After the first refusal: one request at 1, 7 and 20 s; the third refusal is final."""
    watch, now, probed = worked(), 100.0, []
    final = refuse(watch, now=now)

    while not final:
        while not watch.can_send(now=now):
            now += 0.25
        probed.append(now - 100.0)
        final = refuse(watch, now=now)

    assert probed == [1.0, 7.0, 20.0]


def test_probes_go_one_at_a_time():
    """While a probe is out nothing else goes, however long it takes."""
    watch = worked()
    refuse(watch, now=0.0)

    watch.on_send()

    assert not watch.can_send(now=60.0)


def test_a_probe_that_is_answered_ends_the_pause():
    """Everything goes again, and a later refusal begins anew."""
    watch = worked()
    refuse(watch, now=0.0)
    refuse(watch, now=1.0)

    watch.on_answer(watch.on_send())
    open_again = watch.can_send(now=7.0)
    final = [refuse(watch, now=now) for now in (8.0, 9.0, 15.0)]

    assert open_again
    assert final == [False, False, False]


@pytest.mark.parametrize("count", [1, 5])
def test_refusals_of_what_was_out_count_once(count: int):
    """Fifty requests in flight when the key was revoked are one piece of news, and no probes."""
    watch = worked()
    tickets = [watch.on_send() for _ in range(count)]

    final = [watch.on_refusal(ticket, now=0.0) for ticket in tickets]

    assert not any(final)
    assert watch.can_send(now=1.0)
    assert not refuse(watch, now=1.0)
    assert not refuse(watch, now=7.0)
    assert refuse(watch, now=20.0)


def test_an_answer_to_what_was_out_does_not_end_the_pause():
    """It was accepted before the key was revoked."""
    watch = worked()
    old, refused = watch.on_send(), watch.on_send()
    watch.on_refusal(refused, now=0.0)

    watch.on_answer(old)

    assert not watch.can_send(now=0.5)


def test_a_probe_that_fails_otherwise_is_made_again():
    """A 500 says nothing about the key: another probe a second later, and it does not count."""
    watch = worked()
    refuse(watch, now=0.0)

    watch.on_failure(watch.on_send(), now=1.0)

    assert not watch.can_send(now=1.9)
    assert watch.can_send(now=2.0)
    assert [refuse(watch, now=now) for now in (2.0, 8.0, 21.0)] == [False, False, True]
