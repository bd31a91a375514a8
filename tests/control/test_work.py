"""The work model and the congestion gradient."""

import random

import pytest

from evalpipe.control.observation import Outcome, Sample
from evalpipe.control.work import GradientMeter, WorkModel, WorkState


def sample(rtt_s: float, prompt: int = 0, output: int = 0) -> Sample:
    return Sample(Outcome.OK, rtt_s, prompt_tokens=prompt, output_tokens=output)


def traffic(rng: random.Random, *, slow: float = 1.0) -> Sample:
    """A server that needs 50 ms + 0.1 ms a prompt token + 10 ms an output token, times `slow`."""
    prompt, output = rng.randint(50, 4000), int(rng.lognormvariate(5.0, 0.9)) + 1
    return sample(slow * (0.05 + 1e-4 * prompt + 0.01 * output) * rng.uniform(0.97, 1.03), prompt, output)


def test_ratio_of_two_requests_is_learned():
    """After 300 samples the model knows how much longer one request takes than another, within 5 %."""
    model, rng = WorkModel(WorkState()), random.Random(1)

    for _ in range(300):
        model.learn(traffic(rng))
    model.refit()

    assert model.work(4000, 10) / model.work(50, 500) == pytest.approx(0.55 / 5.055, rel=0.05)


def test_gradient_is_one_unloaded_whatever_the_lengths():
    """Answers from 1 to thousands of tokens on an unloaded server leave the gradient near 1."""
    meter, rng = GradientMeter(), random.Random(2)

    for i in range(400):
        meter.observe(traffic(rng), now=i * 0.1)

    assert meter.gradient == pytest.approx(1.0, abs=0.12)


def test_gradient_halves_when_everything_takes_twice_as_long():
    """Twice the latency for the same work reads as half the gradient."""
    meter, rng = GradientMeter(), random.Random(3)
    for i in range(400):
        meter.observe(traffic(rng), now=i * 0.1)
    before = meter.gradient

    for i in range(60):
        meter.observe(traffic(rng, slow=2.0), now=40 + i * 0.1)

    assert before is not None
    assert meter.gradient == pytest.approx(before / 2, rel=0.1)


def test_baseline_forgets_after_five_minutes():
    """A server that became slower for good is the new normal once the old minima have aged."""
    meter, rng = GradientMeter(), random.Random(4)
    for i in range(100):
        meter.observe(traffic(rng), now=i * 0.1)

    for i in range(800):
        meter.observe(traffic(rng, slow=2.0), now=10 + i * 0.5)

    assert meter.gradient == pytest.approx(1.0, abs=0.15)


def test_nothing_is_measured_from_failures():
    """Rejections and unknown latencies leave baseline, recent and gradient undefined."""
    meter = GradientMeter()

    meter.observe(Sample(Outcome.DROPPED, 0.01), now=0.0)
    meter.observe(Sample(Outcome.IGNORED, 0.01), now=0.0)

    assert (meter.baseline_s, meter.recent_s, meter.gradient) == (None, None, None)


def test_without_token_counts_it_is_plain_latency():
    """A server without usage still yields a gradient: each request counts as the same work."""
    meter = GradientMeter()

    for i in range(40):
        meter.observe(sample(0.4), now=i * 0.1)
    for i in range(40):
        meter.observe(sample(0.8), now=4 + i * 0.1)

    assert meter.gradient == pytest.approx(0.5, rel=0.02)
