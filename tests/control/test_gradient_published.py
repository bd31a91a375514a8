"""The published gradient law: its arithmetic, by hand."""

import pytest

from evalpipe.control.build import build_law
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.errors import ConfigError


def successes(*rtts_s, tokens=0):
    return Observation(samples=tuple(Sample(Outcome.OK, rtt_s, output_tokens=tokens) for rtt_s in rtts_s))


def drops(count):
    return Observation(samples=(Sample(Outcome.DROPPED, 0.01, kind="rate_limited"),) * count)


def law_at(limit, **options):
    return build_law("gradient-published", start=limit, **options)


def test_the_published_example():
    """limit 48, rtt_min 0.4, median 0.6 gives 33.5, not the 42 that the publication prints."""
    law = law_at(48, window=3)

    law.observe(successes(0.4, 0.6, 0.6))
    change = law.decide(now=0.0)

    assert change.new == pytest.approx(33.5, abs=1e-3)
    assert (change.old, change.reason) == (48.0, "queue")
    assert (change.evidence.baseline_s, change.evidence.recent_s, change.evidence.samples) == (0.4, 0.6, 3)
    assert change.evidence.gradient == pytest.approx(2 / 3, abs=1e-5)


def test_an_unloaded_server_gives_one_and_a_half_per_window():
    """Equal latencies: gradient 1, so only beta moves; 24 of the default 25 move nothing."""
    law = law_at(16)

    law.observe(successes(*[0.4] * 24))
    early = law.decide(now=0.0)
    law.observe(successes(0.4))
    change = law.decide(now=0.1)

    assert early is None
    assert (change.new, change.reason) == (pytest.approx(17.5, abs=1e-3), "grow")


def test_the_window_is_cleared_after_an_update():
    """Slow samples that were used once do not count a second time."""
    law = law_at(48, window=2)

    law.observe(successes(0.4, 0.8))
    law.decide(now=0.0)
    law.observe(successes(0.4))
    after_one = law.decide(now=0.1)
    law.observe(successes(0.4))

    assert after_one is None
    assert law.decide(now=0.2).evidence.recent_s == 0.4


def test_an_even_window_has_the_upper_median():
    """Of 0.4 0.5 0.7 0.9 the median is 0.7: 48 * 4 / 7 + 1.5."""
    law = law_at(48, window=4)

    law.observe(successes(0.9, 0.4, 0.7, 0.5))

    assert law.decide(now=0.0).new == pytest.approx(28.9286, abs=1e-3)


def test_the_gradient_is_clamped_at_a_half():
    """A hundredfold latency halves and no more: 40 * 0.5 + 1.5; the evidence shows the true ratio."""
    law = law_at(40, window=3)

    law.observe(successes(0.1, 10.0, 10.0))
    change = law.decide(now=0.0)

    assert change.new == 21.5
    assert change.evidence.gradient == pytest.approx(0.01, abs=1e-6)


def test_each_rejection_of_one_observation_cuts():
    """Three 429s at once: 100 * 0.7 * 0.7 * 0.7."""
    law = law_at(100)

    law.observe(drops(3))
    change = law.decide(now=0.0)

    assert (change.new, change.reason) == (pytest.approx(34.3), "rejected")
    assert law.state.epoch == 3


def test_rejections_leave_the_window_alone():
    """Only an update clears it: 24 successes, a rejection, one success make a window."""
    law = law_at(100)

    law.observe(successes(*[0.4] * 24))
    law.observe(drops(1))
    law.observe(successes(0.4))
    change = law.decide(now=0.0)

    assert (change.new, change.reason) == (pytest.approx(71.5, abs=1e-3), "rejected")


def test_ignored_outcomes_are_no_latency():
    """Successes only: a fast failure must not become the minimum."""
    law = law_at(48, window=1)

    law.observe(Observation(samples=(Sample(Outcome.IGNORED, 0.001, kind="bad_request"),)))
    law.decide(now=0.0)

    assert law.state.rtt_min_s is None


def test_both_published_bounds_hold():
    """2 and 128, unless others were given."""
    top, bottom = law_at(127.5, window=1), law_at(3)

    top.observe(successes(0.4))
    bottom.observe(drops(9))

    assert top.decide(now=0.0).new == 128.0
    assert bottom.decide(now=0.0).new == 2.0


def test_the_minimum_expires_after_ten_minutes():
    """At 599 s the old minimum still halves; at 600 s the next success, though slow, is the new minimum."""
    law = law_at(40, window=1)

    law.observe(successes(0.4))
    law.decide(now=1000.0)
    law.observe(successes(0.8))
    before = law.decide(now=1599.0)
    law.observe(successes(0.8))
    after = law.decide(now=1600.0)

    assert before.evidence.gradient == pytest.approx(0.5, abs=1e-5)
    assert after.evidence.gradient == pytest.approx(1.0, abs=1e-5)


def test_the_minimum_never_expires_when_told_so():
    """rtt_min_expiry_s null keeps the first minimum for a day."""
    law = law_at(40, window=1, rtt_min_expiry_s=None)

    law.observe(successes(0.4))
    law.decide(now=0.0)
    law.observe(successes(0.8))

    assert law.decide(now=86400.0).evidence.baseline_s == 0.4


def test_normalised_by_tokens_long_answers_are_not_congestion():
    """Latency in proportion to tokens is a gradient of 1; raw it is one of 1/2."""
    plain, total = law_at(48, window=3), law_at(48, window=3, normalise="total")

    for law in (plain, total):
        for scale in (1, 2, 4):
            sample = Sample(Outcome.OK, 0.5 * scale, prompt_tokens=100 * scale, output_tokens=400 * scale)
            law.observe(Observation(samples=(sample,)))

    assert plain.decide(now=0.0).new == pytest.approx(25.5, abs=1e-3)
    # 48 * 0.001 / (0.001 + 1e-6) + 1.5: the publication's epsilon is felt at one millisecond a token
    assert total.decide(now=0.0).new == pytest.approx(49.452, abs=1e-3)


def test_normalised_without_token_counts_nothing_is_learned():
    """Zero tokens mean unknown: seconds must not mix with seconds per token."""
    law = law_at(48, window=1, normalise="total")

    law.observe(successes(0.4, tokens=0))

    assert law.decide(now=0.0) is None
    assert law.state.rtt_min_s is None


@pytest.mark.parametrize("options", [{"window": 0}, {"beta": -1.0}, {"cut": 1.5}, {"rtt_min_expiry_s": 0.0}])
def test_impossible_options_are_refused(options):
    """The message names the option."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        law_at(16, **options)
