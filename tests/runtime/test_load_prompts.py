"""Prompts of a load test: of a set length, or those of a dataset over and over."""

from __future__ import annotations

from pathlib import Path

from evalpipe.config import load_config
from evalpipe.data import open_dataset
from evalpipe.runtime.load_prompts import MadeUp, from_dataset


def test_prompts_differ_and_have_their_length():
    """Sixteen tokens are 64 characters; no two begin alike; the same number is the same prompt."""
    prompts = MadeUp(16, seed=3)

    assert len(prompts(0).prompt) == 64
    assert prompts(0).prompt[:8] != prompts(1).prompt[:8]
    assert prompts(5) == MadeUp(16, seed=3)(5)
    assert prompts(5) != MadeUp(16, seed=4)(5)


def test_lengths_are_spread_where_that_is_asked():
    """Lognormal around the length, none below eight tokens."""
    lengths = sorted(len(MadeUp(200, sigma=0.5)(number).prompt) for number in range(200))

    assert 0.8 * 800 < lengths[100] < 1.25 * 800
    assert lengths[0] < 400 < 1600 < lengths[-1]
    assert len(MadeUp(1)(0).prompt) == 32


def test_a_dataset_is_asked_over_and_over(tmp_path: Path):
    """Three questions, seven requests: each in its order, from the start again."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f'{{"id": "q{i}", "question": "What is {i}?", "answer": "{i}"}}\n' for i in range(3)))
    config = load_config(flags={"dataset.path": str(path), "prompt.instruction": ""}, environ={})

    with open_dataset(config.dataset) as dataset:
        prompts = from_dataset(dataset, config)
        asked = [prompts(number) for number in range(7)]

    assert len({request.prompt for request in asked[:3]}) == 3
    assert asked[3:6] == asked[:3]
    assert asked[6] == asked[0]
