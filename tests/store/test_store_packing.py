"""Packed ranges: back as they were, spelled in one way only, refused when cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.errors import StateError
from evalpipe.store.packing import pack, unpack

#: from gaps and lengths to sorted, disjoint ranges that do not touch; up to 2**40, a thousand times the largest run
STEPS = st.lists(st.tuples(st.integers(2, 2**34), st.integers(0, 2**34)), max_size=40)


def ranges_of(steps: list[tuple[int, int]]) -> np.ndarray:
    ranges, at = [], -2
    for gap, length in steps:
        first = at + gap
        at = first + length
        ranges.append([first, at])
    return np.array(ranges, dtype=np.int64).reshape(-1, 2)


@given(steps=STEPS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_ranges_come_back(steps: list[tuple[int, int]]):
    """Any sorted ranges, none included; and the same ranges are the same text."""
    ranges = ranges_of(steps)

    text = pack(ranges)

    assert np.array_equal(unpack(text), ranges)
    assert pack(unpack(text)) == text


def test_scattered_items_take_six_characters_each():
    """500 items of ten million in random order: what a segment of a large run has."""
    items = np.sort(np.random.default_rng(1).choice(10**7, 500, replace=False))

    text = pack(np.stack([items, items], axis=1))

    assert len(text) < 500 * 6


@pytest.mark.parametrize("text", ["gA==", "AQ==", "AQGB", "not base64!", "AQ"])
def test_text_that_was_cut_is_refused(text: str):
    """It ends inside a number, inside a range, or is no base64."""
    with pytest.raises(StateError, match="not a packed set of keys"):
        unpack(text)
