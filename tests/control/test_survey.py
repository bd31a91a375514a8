"""The survey: where an answer is booked, what the curve is drawn through, and how old knowledge is doubted."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from evalpipe.control.observation import Outcome, Sample
from evalpipe.control.survey import Answer, Survey, SurveyState, is_answer, level_of


def answer(rtt_s: float, *, in_flight: int = 0, output: int = 100) -> Sample:
    return Sample(Outcome.OK, rtt_s, prompt_tokens=50, output_tokens=output, in_flight_at_send=in_flight)


class Server:
    """A survey that is told of answers at one level after another, and its clock."""

    def __init__(self, *, ages_s: float = 60.0) -> None:
        self.state = SurveyState()
        self.survey = Survey(self.state, ages_s=ages_s)
        self.now = 0.0

    def hold(self, in_flight: int, rtt_s: float, *, answers: int = 12) -> None:
        """Keep so many in flight for a life and then some; each answer takes rtt_s."""
        self.survey.note(in_flight, at=self.now)
        self.now += rtt_s
        self.survey.note(in_flight, at=self.now)
        for _ in range(answers):
            self.now += rtt_s / in_flight
            self.survey.note(in_flight, at=self.now)
            self.survey.take(answer(rtt_s), at=self.now)


def test_an_answer_is_booked_where_it_lived():
    """Ten in flight for a second, thirty for another: an answer of two seconds lived at twenty, more or less."""
    server = Server()
    for at, in_flight in ((0.0, 10), (1.0, 10), (1.01, 30), (2.0, 30)):
        server.survey.note(in_flight, at=at)

    booked = server.survey.take(answer(2.0), at=2.0)

    assert booked.in_flight == pytest.approx(20.0, rel=0.02)
    assert server.survey.answers == 1


def test_a_life_between_two_ticks_is_booked_where_it_was_sent():
    """A tenth of a second tells no average."""
    server = Server()
    server.survey.note(3, at=0.0)

    assert server.survey.take(answer(0.1, in_flight=17), at=0.1).in_flight == 17


def test_the_curve_has_its_knee_where_the_server_is_full():
    """Forty slots, one second."""
    server = Server()
    for in_flight in (8, 16, 24, 32, 40, 50, 60):
        server.hold(in_flight, max(1.0, in_flight / 40))

    found = server.survey.find(at=server.now)

    assert found.curve.knee == pytest.approx(40, rel=0.05)
    assert (found.low, found.top, found.most) == (pytest.approx(8), pytest.approx(60), math.inf)


def test_what_lies_beyond_a_cliff_is_no_part_of_the_curve():
    """At 60 an answer takes six seconds: the curve ends before it, and half-way there is as far as one may go."""
    server = Server()
    for in_flight in (8, 16, 24, 32, 40):
        server.hold(in_flight, 1.0)
    server.hold(60, 6.0)

    found = server.survey.find(at=server.now)

    assert found.top == pytest.approx(40)
    assert found.most == pytest.approx(math.sqrt(40 * 60), rel=0.01)
    assert server.survey.best_below(60) == pytest.approx(40)
    assert server.survey.best_below(8) is None


def test_a_cliff_of_long_ago_is_doubted():
    """After many ages the same level is part of the curve again."""
    server = Server(ages_s=10.0)
    for in_flight in (8, 16, 24, 32, 40):
        server.hold(in_flight, 1.0)
    server.hold(60, 6.0)

    later = server.survey.find(at=server.now + 20_000.0)

    assert later.most == math.inf


def test_nothing_is_found_in_nothing():
    """Two answers are no level."""
    server = Server()
    assert server.survey.find(at=0.0) is None
    server.hold(8, 1.0, answers=2)

    assert server.survey.find(at=server.now) is None
    assert server.survey.best_rate(up_to=100) == 0.0


def test_a_look_is_at_the_newest():
    """Of thirty answers the last five."""
    server = Server()
    server.hold(8, 1.0, answers=25)
    server.hold(8, 3.0, answers=5)

    assert server.survey.look(5).count == 5
    assert server.survey.look(5).seconds == pytest.approx(15.0)


def test_what_is_no_measurement_is_no_answer():
    """A failure, and a latency that nothing could have."""
    assert is_answer(answer(0.1))
    assert not is_answer(answer(1e-9))
    assert not is_answer(Sample(Outcome.DROPPED, 0.1))
    assert not is_answer(Sample(Outcome.IGNORED, 0.1))


def test_answers_make_a_level():
    """Two of ten units in a second each at twenty in flight: 200 units a second."""
    assert level_of([Answer(20.0, 10.0, 1.0)] * 2).rate == pytest.approx(200.0)


def test_what_it_knows_is_handed_over_as_json():
    """A survey of the revived state finds the same knee."""
    server = Server()
    for in_flight in (8, 16, 24, 32, 40, 50, 60):
        server.hold(in_flight, max(1.0, in_flight / 40))

    data = json.loads(json.dumps(asdict(server.state), allow_nan=False))

    assert len(data["levels"]) == len(server.state.levels)
    assert Survey(server.state, ages_s=60.0).find(at=server.now) == server.survey.find(at=server.now)
