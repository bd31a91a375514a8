"""The model of a server's pace: it finds the costs of servers of several kinds, and what tokens/s gain from more."""

from __future__ import annotations

import random

import pytest

from evalpipe.control.observation import Observation
from evalpipe.control.pace import Pace, PaceState
from evalpipe.control.window import Beat, beat_of

STEP_S, SEQUENCE_S, CROWDING_S, PROMPT_S = 0.008, 2e-5, 4e-7, 4e-5


def tick(streams: int, *, prefill: int = 0, crowding_s: float = 0.0, slower: float = 1.0) -> Beat:
    """A tenth of a second of a batching server with so many streams, prompts included."""
    step_s = STEP_S + SEQUENCE_S * streams + crowding_s * streams**2
    steps = (0.1 / slower - PROMPT_S * prefill) / step_s
    tokens = round(steps * streams)
    seen = Observation(in_flight=streams, output_tokens=tokens, prefill_tokens=prefill)
    return beat_of([seen], seconds=0.1)


def taught(ticks: list[Beat]) -> Pace:
    pace = Pace(PaceState())
    for i in range(3, len(ticks) + 1):
        pace.learn(ticks[i - 3 : i])
    return pace


def traffic(*, crowding_s: float = 0.0, highest: int = 100) -> list[Beat]:
    """Levels from 10 to `highest`, each for a second, prompts at random."""
    rng = random.Random(1)
    levels = [level for level in range(10, highest + 1, 10) for _ in range(10)]
    return [tick(level, prefill=rng.randrange(0, 1500), crowding_s=crowding_s) for level in levels]


def test_costs_of_a_batching_server_are_found():
    """Step, sequence and prompt token within a few per cent, from what a worker sees."""
    step_s, sequence_s, _, prompt_s = taught(traffic()).state.weights

    assert step_s == pytest.approx(STEP_S, rel=0.03)
    assert sequence_s == pytest.approx(SEQUENCE_S, rel=0.25)
    assert prompt_s == pytest.approx(PROMPT_S, rel=0.03)


@pytest.mark.parametrize(("streams", "prefill"), [(50, 0), (50, 2_000), (90, 500), (150, 0)])
def test_a_burst_of_prompts_and_another_level_are_explained(streams: int, prefill: int):
    """Prompts that take four fifths of a tick, and a level half again as high as any seen: within 5 %."""
    explained_s = taught(traffic()).explained_s([tick(streams, prefill=prefill)])

    assert explained_s == pytest.approx(0.1, rel=0.05)


def test_a_slow_server_is_not_explained():
    """At a quarter of its pace the work explains a quarter of the time."""
    assert taught(traffic()).explained_s([tick(50, slower=4.0)]) == pytest.approx(0.025, rel=0.1)


@pytest.mark.parametrize("streams", [20, 50, 100])
def test_elasticity_is_the_closed_form(streams: int):
    """a / (a + b n) where crowding costs nothing."""
    expected = STEP_S / (STEP_S + SEQUENCE_S * streams)

    assert taught(traffic()).elasticity(streams) == pytest.approx(expected, rel=0.03)


def test_elasticity_is_zero_where_tokens_per_second_peak():
    """With crowding they peak at sqrt(a / c) in flight, here 141, and fall beyond."""
    pace = taught(traffic(crowding_s=CROWDING_S, highest=200))

    assert pace.elasticity(141) == pytest.approx(0.0, abs=0.05)
    assert pace.elasticity(250) < -0.1


def test_before_any_token_nothing_is_known():
    """Ticks without tokens teach nothing; until then tokens/s are thought to grow in proportion."""
    pace = taught([tick(0)] * 20)

    assert not pace.is_known
    assert pace.elasticity(50) == 1.0


def test_a_slower_server_is_believed_when_told():
    """slow_down scales what is explained, and what is learned later goes on from there."""
    pace = taught(traffic())
    pace.slow_down(4.0)
    pace.learn([tick(50, slower=4.0)] * 3)

    assert pace.explained_s([tick(50, slower=4.0)]) == pytest.approx(0.1, rel=0.1)
