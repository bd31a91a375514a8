"""spec.json: written once, compared on resume."""

from __future__ import annotations

import dataclasses

import pytest
from store_rows import SPEC, flip_byte

from evalpipe.errors import StateError
from evalpipe.store.local import LocalStore
from evalpipe.store.objects import NotFound
from evalpipe.store.spec import KEY, read_spec, write_spec


def test_the_first_spec_stays(store: LocalStore):
    """Other package versions do not stop a resume, and do not rewrite history."""
    began = dataclasses.replace(SPEC, versions={"ray": "1"})
    write_spec(store, began)

    stored = write_spec(store, dataclasses.replace(SPEC, versions={"ray": "2"}))

    assert stored == began == read_spec(store)
    assert stored.sha256 == SPEC.sha256


def test_a_difference_is_told_setting_by_setting(store: LocalStore):
    """Old and new value of what differs, nothing of what does not, and no prompt in full."""
    write_spec(store, SPEC)
    prompt = {"template": "x" * 500}

    with pytest.raises(StateError) as raised:
        write_spec(store, dataclasses.replace(SPEC, semantic={"model": "m", "prompt": prompt, "seed": 1}, items=21))

    text = str(raised.value)
    assert "items: 20 -> 21" in text
    assert "semantic.seed: (not set) -> 1" in text
    assert 'semantic.prompt.template: "{{ q }}" -> "xxx' in text and "(502 characters)" in text
    assert "semantic.model" not in text and "x" * 100 not in text


def test_lists_and_tuples_are_the_same_setting(store: LocalStore):
    """JSON knows only one of them."""
    write_spec(store, dataclasses.replace(SPEC, semantic={"stop": ("a", "b")}))

    stored = write_spec(store, dataclasses.replace(SPEC, semantic={"stop": ["a", "b"]}))

    assert stored.semantic == {"stop": ["a", "b"]}


def test_a_damaged_or_missing_spec_is_told_apart(store: LocalStore):
    """Missing: no run began there. Damaged: stop."""
    with pytest.raises(NotFound):
        read_spec(store)

    write_spec(store, SPEC)
    flip_byte(store, KEY, at=20)
    with pytest.raises(StateError, match=r"spec\.json is damaged"):
        read_spec(store)
