"""First-token baselines: what they learn, what they forget, and when a worker calls a first token overdue."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from evalpipe.control.baseline import BUCKETS, Baselines, BaselineState, Deadlines, bin_of
from evalpipe.control.observation import FirstTokens, Outcome, Sample


def first(key: int, least_s: float, *, count: int = 1) -> FirstTokens:
    return FirstTokens(key, count, 0, least_s)


def learned(*first_tokens: FirstTokens, now: float = 0.0) -> Baselines:
    baselines = Baselines()
    baselines.observe(first_tokens, (), now=now)
    return baselines


@pytest.mark.parametrize(("prompt_tokens", "key"), [(0, 0), (1, 0), (2, 1), (255, 7), (256, 8), (32_000, 14)])
def test_a_bin_is_the_whole_part_of_log2(prompt_tokens: int, key: int):
    """Prompts within a factor of two share a bin; an empty prompt is in the first."""
    assert bin_of(prompt_tokens) == key


def test_the_least_of_a_bin_counts():
    """A first token that comes later does not move the baseline, one that comes sooner does."""
    baselines = learned(first(8, 0.5), first(8, 0.2), first(8, 0.9), first(10, 1.0))

    assert baselines.base_s() == {8: 0.2, 10: 1.0}


def test_overdue_is_twice_the_baseline_and_never_too_soon_after_it():
    """At 50 ms the margin decides, at a second the factor."""
    assert learned(first(5, 0.05), first(12, 1.0)).overdue == ((5, pytest.approx(0.15)), (12, 2.0))


def test_a_baseline_is_forgotten_after_five_minutes():
    """A server that became slower for good is not called overloaded for ever."""
    baselines = learned(first(8, 0.1))

    for second in range(0, 301, 10):
        baselines.observe((first(8, 0.4),), (), now=float(second))

    assert baselines.base_s() == {8: 0.4}
    assert len(baselines.state.minima) <= BUCKETS


def test_a_finished_sample_tells_its_first_token_too():
    """Workers of an older form tell it only at the end; what was not streamed tells nothing."""
    baselines = Baselines()
    samples = [Sample(Outcome.OK, 3.0, ttft_s=0.3, prompt_tokens=100), Sample(Outcome.OK, 3.0, prompt_tokens=100)]

    baselines.observe((), samples, now=0.0)

    assert baselines.base_s() == {6: 0.3}


def seen(ttfts_s: list[float], *, in_flight: int) -> list[Sample]:
    return [Sample(Outcome.OK, 9.0, ttft_s=s, prompt_tokens=300, in_flight_at_send=in_flight) for s in ttfts_s]


def test_first_tokens_that_scatter_by_themselves_are_given_as_long():
    """Behind a gateway that takes 0.3 to 2.2 s with few in flight, nothing is overdue before 95 % would be there."""
    baselines = Baselines()

    baselines.observe((), seen([0.3 + 0.1 * i for i in range(20)], in_flight=5), now=0.0)
    baselines.observe((), seen([0.5], in_flight=40), now=0.1)

    assert baselines.overdue == ((8, pytest.approx(2.2)),)


def test_what_found_many_in_flight_says_nothing_of_an_empty_server():
    """First tokens of a second at 40 in flight are a queue, if those at 5 took a fifth of that."""
    baselines = Baselines()

    baselines.observe((), seen([0.2] * 20, in_flight=5) + seen([1.0] * 50, in_flight=40), now=0.0)

    assert baselines.overdue == ((8, 0.4),)


def test_a_few_first_tokens_do_not_make_a_habit():
    """Fifteen of them may have met one long prompt."""
    baselines = Baselines()

    baselines.observe((), seen([0.3] + [3.0] * 14, in_flight=5) + seen([0.5], in_flight=40), now=0.0)

    assert baselines.overdue == ((8, 0.6),)


def test_baselines_survive_json():
    """Time goes on from where it stood: another process forgets no sooner."""
    baselines = learned(first(8, 0.1))
    baselines.observe((), (), now=120.0)
    again = Baselines(BaselineState(**json.loads(json.dumps(asdict(baselines.state)))))

    again.observe((first(8, 0.4),), (), now=7.0)

    assert again.base_s() == {8: 0.1}
    assert again.state.elapsed_s == 120.0


def test_deadlines_without_a_table_are_two_seconds():
    """Before the first token of a run nobody knows what is late."""
    assert Deadlines().after_s(8) == 2.0


@pytest.mark.parametrize(
    ("key", "seconds"), [(8, 0.3), (3, 0.3), (9, 0.6), (10, 1.2), (11, 5.0), (12, 5.0), (14, 20.0)]
)
def test_a_bin_not_seen_yet_takes_the_nearest(key: int, seconds: float):
    """Longer prompts get twice as long for each doubling, shorter ones no less than what is known."""
    assert Deadlines(((8, 0.3), (12, 5.0))).after_s(key) == pytest.approx(seconds)
