"""Beats and windows: what a tick is made of, and averages over a span of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.control.window import Beat, Window, beat_of

QUIET = beat_of([Observation()], seconds=0.1)


def beats(*changes: dict, seconds: float = 0.1) -> list[Beat]:
    return [replace(QUIET, seconds=seconds, **change) for change in changes]


def window(span_s: float, *changes: dict, seconds: float = 0.1) -> Window:
    filled = Window(span_s)
    for beat in beats(*changes, seconds=seconds):
        filled.add(beat)
    return filled


def test_a_beat_adds_flows_and_keeps_the_last_levels():
    """Two exchanges within a tick: tokens and answers add up, what is out now is what the last one says."""
    ok, drop = Sample(Outcome.OK, 1.0), Sample(Outcome.DROPPED, 0.1, kind="overloaded")
    reset, refused = Sample(Outcome.IGNORED, 0.1, kind="reset"), Sample(Outcome.IGNORED, 0.1, kind="bad_request")
    first = Observation(in_flight=9, in_flight_peak=12, waiting=4, output_tokens=30, samples=(ok, drop))
    second = Observation(
        in_flight=8,
        waiting=3,
        overdue=2,
        stalled=1,
        output_tokens=20,
        prefill_tokens=70,
        samples=(ok, reset, refused),
        first_tokens=(FirstTokens(5, 3, 1, 0.1), FirstTokens(9, 1, 0, 0.2)),
    )

    beat = beat_of([first, second], seconds=0.1)

    assert (beat.in_flight, beat.peak, beat.waiting, beat.stuck, beat.stalled) == (8, 12, 3, 3, 1)
    assert (beat.tokens, beat.prefill, beat.begun, beat.late) == (50, 70, 4, 1)
    assert (beat.answered, beat.ill) == (2, 2)


def test_flows_are_taken_over_the_time_that_reports_cover():
    """Two exchanges that cover 0.15 s between them, with three streams in one and five in the other."""
    first = Observation(in_flight=9, span_s=0.05, stream_s=0.15)
    second = Observation(in_flight=9, span_s=0.1, stream_s=0.5)

    beat = beat_of([first, second], seconds=0.1)

    assert beat.flow_s == pytest.approx(0.15)
    assert beat.streams == pytest.approx(0.65 / 0.15)


def test_time_without_a_stream_is_no_time_for_tokens():
    """One stream that was answered for 30 ms of a tick: no token is missing from the other 70."""
    beat = beat_of([Observation(in_flight=1, span_s=0.1, stream_s=0.03, output_tokens=3)], seconds=0.1)

    assert (beat.flow_s, beat.streams) == (pytest.approx(0.03), 1.0)


def test_where_nobody_measured_the_tick_stands_in():
    """What runs at its end ran all the time."""
    beat = beat_of([Observation(in_flight=20, waiting=6, stalled=2)], seconds=0.1)

    assert (beat.flow_s, beat.streams) == (0.1, pytest.approx(12.0))


def test_a_sample_stands_for_all():
    """Of 40 in flight 30 are not streamed: what is seen of the 10 counts four times; prompts were told of all."""
    whole = Sample(Outcome.OK, 1.0, output_tokens=500)
    seen = Observation(
        in_flight=40,
        unseen=30,
        waiting=2,
        overdue=1,
        output_tokens=600,
        prefill_tokens=90,
        samples=(whole,),
        first_tokens=(FirstTokens(8, 3, 1, 0.1),),
        span_s=0.1,
        stream_s=0.8,
    )

    beat = beat_of([seen], seconds=0.1)

    assert (beat.in_flight, beat.waiting, beat.stuck, beat.begun, beat.late) == (40, 8, 4, 12, 4)
    assert (beat.tokens, beat.prefill, beat.streams) == (400, 90, pytest.approx(32.0))


def test_shares_of_a_sample_need_as_many_that_were_seen():
    """Two first tokens that stand for twenty are two."""
    assert window(1.0, {"begun": 20.0, "per_seen": 10.0}).on_time_share is None
    assert window(1.0, {"begun": 80.0, "late": 20.0, "per_seen": 10.0}).on_time_share == pytest.approx(0.75)


def test_a_window_forgets_what_is_older_than_its_span():
    """Ticks of a tenth of a second fill a second with ten, however the tenths round."""
    filled = window(1.0, *({"in_flight": level} for level in range(25)))

    assert filled.is_full
    assert len(list(filled)) == 10
    assert filled.in_flight == pytest.approx(19.5)


def test_means_are_weighted_by_time():
    """A tick that came late counts for as long as it lasted."""
    filled = Window(10.0)
    filled.add(replace(QUIET, seconds=0.1, stuck=10))
    filled.add(replace(QUIET, seconds=0.9, stuck=0))

    assert filled.stuck == pytest.approx(1.0)


def test_a_standing_queue_never_empties():
    """A burst does: then the least that was stuck is what it was between."""
    assert window(1.0, {"stuck": 9}, {"stuck": 0}, {"stuck": 9}).least_stuck == 0
    assert window(1.0, {"stuck": 9}, {"stuck": 5}, {"stuck": 9}).least_stuck == 5


def test_shares_need_enough_to_count():
    """Seven first tokens or two failures say nothing about a share."""
    assert window(1.0, {"begun": 7, "late": 7}).on_time_share is None
    assert window(1.0, {"begun": 8, "late": 2}).on_time_share == pytest.approx(0.75)
    assert window(1.0, {"ill": 2}).ill_share == 0.0
    assert window(1.0, {"ill": 3, "answered": 1}).ill_share == pytest.approx(0.75)
