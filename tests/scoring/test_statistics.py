"""Intervals, estimates and bounds against published values, properties and simulation."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.scoring.statistics import bounds, clustered, normal_quantile, pass_at_k, student_quantile, wilson

counts = st.integers(0, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.floats(0.01, 0.999))
def test_wilson_holds_the_proportion_inside_the_unit_interval(pair, confidence):
    """0 <= low <= p <= high <= 1 whatever the counts and the confidence."""
    successes, n = pair

    low, high = wilson(successes, n, confidence=confidence)

    assert 0 <= low <= high <= 1
    assert n == 0 or low <= successes / n <= high


@given(counts)
def test_wilson_does_not_care_which_outcome_is_success(pair):
    """Swapping right and wrong mirrors the interval."""
    successes, n = pair

    low, high = wilson(successes, n)

    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "n", "interval"),
    [
        (81, 263, (0.2553, 0.3662)),  # Newcombe, Statistics in Medicine 17 (1998), table I
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
        (0, 0, (0.0, 1.0)),
    ],
)
def test_wilson_agrees_with_published_values(successes, n, interval):
    """Four digits of the published examples come out."""
    assert wilson(successes, n) == pytest.approx(interval, abs=5e-5)


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5)])
def test_impossible_counts_are_refused(successes, n):
    """More successes than tries is a mistake of the caller."""
    with pytest.raises(ValueError, match=f"got {successes} of {n}"):
        wilson(successes, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_impossible_confidence_is_refused(confidence):
    """Confidence is a probability, not a percentage."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        normal_quantile(confidence)


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (10, 2.2281), (100, 1.9840)]
)
def test_student_quantile_agrees_with_tables(degrees, value):
    """The series is within 0.2 percent of the printed tables at 95 percent."""
    assert student_quantile(0.95, degrees=degrees) == pytest.approx(value, rel=2e-3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=60))
def test_clustered_holds_the_proportion_inside_the_unit_interval(rows):
    """0 <= low <= p <= high <= 1 for any rows of any items, all right and all wrong included."""
    correct, items = np.array([c for c, _ in rows]), np.array([i for _, i in rows])

    low, high = clustered(correct, items)

    assert 0 <= low <= correct.mean() <= high <= 1


def test_identical_repeats_add_nothing():
    """Four copies of each verdict leave the interval of the items as it is, where Wilson over rows would halve it."""
    once = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1] * 10)
    items = np.arange(100)

    single = clustered(once, items)
    fourfold = clustered(np.repeat(once, 4), np.repeat(items, 4))

    assert fourfold == pytest.approx(single, abs=1e-3)
    assert wilson(280, 400)[1] - wilson(280, 400)[0] < 0.6 * (fourfold[1] - fourfold[0])


def test_all_right_is_as_sure_as_the_number_of_items():
    """Ten items right five times each do not prove more than about ten items right once."""
    low, high = clustered(np.ones(50), np.repeat(np.arange(10), 5))

    assert high == 1.0
    assert low < wilson(10, 10)[0]


def test_one_item_says_nothing_about_others():
    """Repeats of a single item bound nothing, and no rows neither."""
    assert clustered(np.array([1, 1, 0]), np.array([7, 7, 7])) == (0.0, 1.0)
    assert clustered(np.array([]), np.array([])) == (0.0, 1.0)


def test_clustered_covers_the_truth_where_wilson_does_not():
    """Of 400 simulated runs 92 to 98 percent hold the truth; with repeats taken as independent, under 85 percent."""
    rng = np.random.default_rng(7)
    items = np.repeat(np.arange(100), 4)
    truth = 0.7  # the mean of Beta(1.4, 0.6): most items are nearly always right or nearly always wrong
    hits = naive_hits = 0
    for _ in range(400):
        correct = rng.random(400) < np.repeat(rng.beta(1.4, 0.6, size=100), 4)
        low, high = clustered(correct, items)
        naive_low, naive_high = wilson(int(correct.sum()), 400)
        hits += low <= truth <= high
        naive_hits += naive_low <= truth <= naive_high

    assert 0.92 <= hits / 400 <= 0.98
    assert naive_hits / 400 < 0.85


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (4, 3, 4)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n, c, k):
    """The estimate equals counting: of all k answers among n, how many hold one of the c right ones."""
    subsets = list(combinations(range(n), k))
    lucky = sum(any(i < c for i in subset) for subset in subsets)

    assert pass_at_k(n, c, k) == pytest.approx(lucky / len(subsets))


def test_pass_at_k_stays_exact_for_many_answers():
    """No overflow and no rounding to 1 with thousands of answers."""
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)
    assert math.isfinite(pass_at_k(5000, 2500, 2500))


@pytest.mark.parametrize("k", [0, 6])
def test_pass_at_k_needs_as_many_answers(k):
    """k beyond the answers there are has no unbiased estimate."""
    with pytest.raises(ValueError, match=f"got k={k}, n=5"):
        pass_at_k(5, 1, k)


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3).map(sorted))
def test_bounds_hold_whatever_the_missing_would_have_said(numbers):
    """Any verdicts on what is missing give an accuracy between worst and best."""
    correct, answered, expected = numbers

    worst, best = bounds(correct=correct, answered=answered, expected=expected)

    assert 0 <= worst <= best <= 1
    if expected:
        assert worst == correct / expected
        assert best == pytest.approx(1 - (answered - correct) / expected)


def test_bounds_refuse_more_answers_than_expected():
    """An answer too many means that a result was counted twice."""
    with pytest.raises(ValueError, match="correct <= answered <= expected"):
        bounds(correct=1, answered=3, expected=2)
