"""Profiles are data: names and options are checked, numbers are replaced, models are built."""

from __future__ import annotations

import pickle
import random
import statistics

import pytest

from evalpipe.errors import ConfigError
from evalpipe.sim.engine import Job
from evalpipe.sim.profiles import PROFILES, profile


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_serves_and_pickles(name: str):
    """Each profile survives a pickle and builds a model that finishes a job."""
    model = pickle.loads(pickle.dumps(profile(name))).build(seed=1)

    model.advance(0.0)
    assert model.submit(Job(0, 20, 30), now=0.0) is None

    assert [e.kind for e in model.advance(60.0)] == ["first_token", "done"]
    assert (model.in_flight, model.tokens_emitted, model.prefill_done) == (0, 30, 20)


def test_options_replace_numbers_of_any_section():
    """An option lands in the section that has a field of its name."""
    changed = profile("vllm", slots=32, median=50, rpm=10, replicas=2, chunk_s=0.1)

    assert (changed.server.slots, changed.answers.median, changed.quota.rpm) == (32, 50, 10)
    assert (changed.balancer.replicas, changed.chunk_s) == (2, 0.1)
    assert profile("vllm").server.slots == 64


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vlm", {}, "did you mean 'vllm'"),
        ("vllm", {"slot": 3}, "did you mean 'slots'"),
        ("vllm", {"slots": "many"}, "slots must be of type int, got 'many'"),
        ("vllm", {"slots": True}, "slots must be of type int"),
        ("vllm", {"slots": 0}, "slots and chunk must be at least 1"),
        ("cliff", {"slots": 3}, "unknown option 'slots'"),
        ("cliff", {"name": "x"}, "unknown option 'name'"),
        ("cliff", {"sigma": -1.0}, "sigma must be >= 0"),
    ],
)
def test_wrong_names_and_values_are_refused(name: str, options: dict[str, object], message: str):
    """What is wrong, what was given, what would do."""
    with pytest.raises(ConfigError, match=message):
        profile(name, **options)


def test_lengths_have_the_median_and_the_bound():
    """Lognormal output tokens: median 180, never above 2,000 nor below 1; work is 1."""
    rng = random.Random(1)
    drawn = [profile("vllm").answers.draw(rng, prompt_tokens=100) for _ in range(4000)]

    assert statistics.median(d.output_tokens for d in drawn) == pytest.approx(180, rel=0.05)
    assert max(d.output_tokens for d in drawn) == 2000
    assert {d.work for d in drawn} == {1.0}


@pytest.mark.parametrize("sigma", [0.0, 0.15, 0.4])
def test_work_has_mean_one_and_tokens_follow_it(sigma: float):
    """On the cliff prompt + output tokens are 400 times the work, to half a token."""
    rng = random.Random(1)
    answers = profile("cliff", sigma=sigma).answers
    drawn = [answers.draw(rng, prompt_tokens=50) for _ in range(4000)]

    assert statistics.mean(d.work for d in drawn) == pytest.approx(1, abs=0.02)
    assert all(abs(50 + d.output_tokens - 400 * d.work) <= 0.5 for d in drawn if d.output_tokens > 8)


def test_long_prompt_leaves_the_least_output():
    """A prompt longer than the work's tokens cannot shrink."""
    demand = profile("cliff").answers.draw(random.Random(1), prompt_tokens=5000)

    assert demand.output_tokens == 8
