"""`progress-or-regress`: who steers, when it changes hands, and that a change of hands changes no limit."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.control.build import build_law
from evalpipe.control.either import EitherLaw, EitherState
from evalpipe.control.law import Bounds
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.control.progress import ProgressState
from evalpipe.control.regress import RegressState
from evalpipe.sim import wide
from evalpipe.sim.gateway import Gateway
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualSetup


class Feed:
    """The law and the answers it is shown, ten a tick. ttft_s: of each, None: not streamed."""

    def __init__(self, *, start: float = 40.0) -> None:
        self.law = EitherLaw(Bounds(start, 1, 512))
        self.now = 0.0
        self.law.decide(now=0.0)

    def tick(self, *, ttft_s: float | None = 0.1, tokens: int = 100, rtt_s: float = 1.0, count: int = 10):
        self.now += 0.1
        limit, epoch = math.floor(self.law.state.limit), self.law.state.epoch
        sample = Sample(
            Outcome.OK, rtt_s, ttft_s=ttft_s, prompt_tokens=50, output_tokens=tokens, epoch=epoch, limit=limit
        )
        first = () if ttft_s is None else (FirstTokens(5, count, 0, ttft_s),)
        self.law.observe(
            Observation(in_flight=limit, output_tokens=count * tokens, samples=(sample,) * count, first_tokens=first)
        )
        return self.law.decide(now=self.now)


def test_it_begins_with_progress_and_says_that_it_cannot_tell_yet():
    """Nothing was answered."""
    law = Feed().law

    assert law.state.active == "progress"
    assert "too few" in law.why


@pytest.mark.parametrize("ttft_s", [None, 0.99], ids=["no streams", "streams in one piece"])
def test_without_early_first_tokens_regress_takes_over(ttft_s: float | None):
    """After a dozen answers; the limit at that moment stays."""
    feed = Feed()
    feed.tick(ttft_s=ttft_s)
    before = feed.law.state.limit

    change = feed.tick(ttft_s=ttft_s)

    assert change is None
    assert (feed.law.state.active, feed.law.state.limit) == ("regress", before)
    assert feed.law.why.startswith("regress: 0%")


def test_a_sample_of_a_tenth_is_enough_to_see():
    """One answer of ten is streamed: progress stays."""
    feed = Feed()

    for i in range(200):
        feed.tick(ttft_s=0.1 if i % 10 == 0 else None, count=1)

    assert feed.law.state.active == "progress"


def test_streams_that_come_back_are_seen():
    """A proxy that buffered is gone."""
    feed = Feed()
    for _ in range(10):
        feed.tick(ttft_s=None)

    for _ in range(3):
        feed.tick()

    assert feed.law.state.active == "progress"


def test_a_settled_law_is_followed_by_a_settled_one():
    """Half-way through a run nobody ramps up from where the limit stands."""
    feed = Feed()
    feed.law.state.progress.mode = "cruise"

    for _ in range(4):
        feed.tick(ttft_s=None, count=5)

    assert (feed.law.state.active, feed.law.state.regress.mode) == ("regress", "cruise")


def test_short_answers_tell_nothing():
    """A label of four tokens ends with its first chunk everywhere."""
    feed = Feed()

    for _ in range(50):
        feed.tick(ttft_s=0.99, tokens=4)

    assert feed.law.state.active == "progress"
    assert feed.law.state.judged == 0


def test_what_it_changes_is_the_word_of_the_law_that_steers():
    """The evidence of each change names it."""
    feed = Feed()
    feed.tick(ttft_s=None, count=20)

    changes = [change for _ in range(60) if (change := feed.tick(ttft_s=None)) is not None]

    assert changes
    assert all(change.evidence.state.startswith("regress ") for change in changes)


def test_both_laws_stand_where_the_limit_is():
    """Whoever steers, the other one knows limit and epoch, and has learned from every answer."""
    feed = Feed()

    for _ in range(30):
        feed.tick()
        state = feed.law.state
        assert (state.progress.limit, state.regress.limit) == (state.limit, state.limit)
        assert (state.progress.epoch, state.regress.epoch) == (state.epoch, state.epoch)

    assert state.regress.survey.levels


SAMPLE = st.builds(
    Sample,
    st.sampled_from(Outcome),
    rtt_s=st.floats(0.0, 100.0),
    ttft_s=st.none() | st.floats(0.0, 100.0),
    prompt_tokens=st.integers(0, 5000),
    output_tokens=st.integers(0, 500),
    epoch=st.integers(0, 4),
    in_flight_at_send=st.integers(0, 100),
)
STEPS = st.lists(st.tuples(SAMPLE, st.integers(0, 20), st.integers(0, 100), st.floats(0.0, 30.0)), max_size=40)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_whatever_comes(steps):
    """Within bounds, one cut a decision, no change without a move, and all of it survives JSON."""
    law, now = EitherLaw(Bounds(16, 2, 64)), 0.0
    for sample, count, in_flight, gap_s in steps:
        old, epoch, now = law.state.limit, law.state.epoch, now + gap_s
        law.observe(Observation(in_flight=in_flight, samples=(sample,) * count))
        change = law.decide(now=now)

        assert 2 <= law.state.limit <= 64
        assert law.state.epoch - epoch in (0, 1)
        assert (change is None) == (law.state.limit == old)

    assert json.loads(json.dumps(asdict(law.state), allow_nan=False))["active"] in ("progress", "regress")


def test_a_state_brings_its_law_along():
    """A resumed run does not look for streams again."""
    state = EitherState(30.0, 2, "regress", 50.0, 0.0, ProgressState(1.0), RegressState(1.0))

    law = EitherLaw(Bounds(16, 1, 512), state=state)

    assert (law.state.limit, law.state.active) == (30.0, "regress")
    assert (law.state.regress.limit, law.state.progress.epoch) == (30.0, 2)


@pytest.mark.parametrize("is_buffering", [False, True], ids=["streams", "streams in one piece"])
def test_behind_a_proxy_it_is_as_good_as_what_it_falls_back_to(is_buffering: bool):
    """64 slots, whose best fixed limit is 67, from a cold start at 16: 1.05 with streams, 1.10 without."""
    course, setup = wide.draw("64 slots", 1), VirtualSetup(gateway=Gateway(is_buffering=is_buffering), horizon_s=5e3)
    law = EitherLaw(Bounds(16, 1, 1024))

    ours = run_virtual(law, course.server(0), course.draw(0), setup=setup)
    best = run_virtual(build_law("fixed", start=67), course.server(0), course.draw(0), setup=setup)

    assert law.state.active == ("regress" if is_buffering else "progress")
    assert ours.makespan_s <= (1.10 if is_buffering else 1.05) * best.makespan_s


def test_what_a_quota_moved_from_outside_stays_moved():
    """core counts an epoch and puts a limit back; the law that steers goes on from there."""
    law = build_law("progress-or-regress", start=10, max_limit=100)
    law.state.limit, law.state.epoch = 40.0, 3

    law.observe(Observation(in_flight=5))
    law.decide(now=0.1)

    assert (law.state.limit, law.state.epoch) == (40.0, 3)
