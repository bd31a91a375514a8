"""build_law, and what every law must keep whatever it is told."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.control.build import LAW_NAMES, build_law, resolve_law
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError, StateError

SAMPLES = st.builds(
    Sample,
    outcome=st.sampled_from(Outcome),
    rtt_s=st.floats(0.0, 1e4),
    prompt_tokens=st.integers(0, 100_000),
    output_tokens=st.integers(0, 10_000),
    epoch=st.integers(0, 5),
    limit=st.integers(1, 64),
)
OBSERVATIONS = st.builds(
    Observation,
    in_flight=st.integers(0, 100),
    in_flight_peak=st.integers(0, 100),
    samples=st.lists(SAMPLES, max_size=40).map(tuple),
)
# what happened, and the seconds since the last decision
TRACES = st.lists(st.tuples(OBSERVATIONS, st.floats(0.0, 1000.0)), max_size=12)


@pytest.mark.parametrize("name", LAW_NAMES)
@settings(max_examples=40, deadline=None)
@given(trace=TRACES)
def test_every_law_keeps_its_bounds_and_says_what_it_did(name, trace):
    """The limit is a number within the bounds; a change tells the old, the new and a difference; epochs only rise."""
    law, now = build_law(name, start=10, min_limit=3, max_limit=40), 0.0

    for observation, gap_s in trace:
        old, epoch, now = law.state.limit, law.state.epoch, now + gap_s
        law.observe(observation)
        change = law.decide(now=now)

        assert 3.0 <= law.state.limit <= 40.0
        assert law.state.epoch >= epoch + (law.state.limit < old)
        assert change is None or (change.old, change.new) == (old, law.state.limit)
        assert (change is None) == (law.state.limit == old)


@settings(max_examples=60, deadline=None)
@given(trace=TRACES)
def test_aimd_cuts_at_most_once_an_epoch(trace):
    """However many drops: cuts are no more than the epochs they were sent in, and a stale one never cuts."""
    law = build_law("aimd", start=64)

    for observation, gap_s in trace:
        for sample in observation.samples:
            epoch = law.state.epoch
            law.observe(Observation(samples=(sample,)))
            law.decide(now=gap_s)
            is_cut = sample.outcome is Outcome.DROPPED and sample.epoch >= epoch
            assert law.state.epoch == epoch + is_cut


@pytest.mark.parametrize("name", LAW_NAMES)
@settings(max_examples=20, deadline=None)
@given(trace=TRACES)
def test_a_state_survives_json(name, trace):
    """asdict, JSON and back is the same state."""
    law = build_law(name)
    for observation, gap_s in trace:
        law.observe(observation)
        law.decide(now=gap_s)

    again = build_law(name, state=json.loads(json.dumps(asdict(law.state), allow_nan=False)))

    assert again.state == law.state
    assert again.state is not law.state


@pytest.mark.parametrize(
    ("name", "start", "max_limit"),
    [
        ("fixed", 16, 512),
        ("aimd", 16, 512),
        ("aimd-published", 16, 128),
        ("gradient-published", 16, 128),
        ("bbr-published", 20, 200),
        ("gradient", 16, 512),
    ],
)
def test_each_law_starts_where_it_says(name, start, max_limit):
    """The published ones at their own numbers; a warm start above the ceiling is brought down to it."""
    warm = build_law(name, state={**asdict(build_law(name).state), "limit": 1e6})

    assert build_law(name).state.limit == start
    assert warm.state.limit == max_limit


@pytest.mark.parametrize(
    ("given_limits", "start"),
    [
        ({"max_limit": 2}, 2.0),
        ({"min_limit": 300}, 300.0),
        ({"start": 1000}, 1000.0),
        ({"start": 1}, 1.0),
        ({"start": 3, "max_limit": 3}, 3.0),
    ],
)
def test_defaults_give_way_to_what_was_given(given_limits, start):
    """bbr-published has 5, 20 and 200 of its own; a user who says one number need not say three."""
    assert build_law("bbr-published", **given_limits).state.limit == start


def test_auto_is_the_law_that_never_does_badly_and_says_so():
    """The name that is recorded is the law that steers."""
    name, why = resolve_law("auto")

    assert name == "regress"
    assert "regress" in why
    assert type(build_law("auto")) is type(build_law("regress"))


def test_a_law_that_is_not_for_every_server_says_so():
    """Told at the start of a run, before it starves one."""
    for name in ("progress", "progress-or-regress"):
        assert "models that think in silence" in resolve_law(name)[1]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gradint", {}, "did you mean 'gradient'"),
        ("zzz", {}, "known: aimd, "),
        ("gradient-published", {"windw": 5}, "did you mean 'window'"),
        ("fixed", {"window": 5}, "no option 'window'; known: none"),
        ("gradient-published", {"window": 2.5}, "window must be of type int, got 2.5"),
        ("gradient-published", {"window": True}, "window must be of type int, got True"),
        ("gradient-published", {"beta": math.nan}, "beta must be of type float, got nan"),
        ("gradient-published", {"normalise": "tokens"}, "normalise must be 'none' or 'total', got 'tokens'"),
        ("gradient-published", {"rtt_min_expiry_s": "soon"}, "rtt_min_expiry_s must be of type float"),
        ("aimd", {"start": 0}, "start must be a finite number of at least 1, got 0"),
        ("aimd", {"max_limit": math.inf}, "max_limit must be a finite number"),
        ("aimd", {"min_limit": "4"}, "min_limit must be a finite number of at least 1, got '4'"),
        ("aimd", {"min_limit": 9, "max_limit": 4}, "min_limit must be <= max_limit, got min_limit=9, max_limit=4"),
        ("aimd", {"start": 5, "max_limit": 4}, "start must lie between"),
    ],
)
def test_mistakes_are_refused_with_what_would_do(name, arguments, message):
    """ConfigError before any work, naming what was given."""
    with pytest.raises(ConfigError) as caught:
        build_law(name, **arguments)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    "state",
    [{}, {"limit": 8.0, "colour": 1}, {"limit": "8"}, {"limit": math.nan}, build_law("gradient-published").state, 8.0],
)
def test_a_foreign_state_is_refused(state):
    """A resumed run must not steer by what another law remembered."""
    with pytest.raises(StateError, match="aimd"):
        build_law("aimd", state=state)
