"""Checksums inside files that people open: a changed value is noticed, and both stay what they were."""

from __future__ import annotations

import json

import pytest
import yaml

from evalpipe.errors import StateError
from evalpipe.store import readable

BODY = {"items": {"expected": 20, "ok": 19}, "score": {"accuracy": 0.1}, "why": "", "rate": None}


def test_json_is_read_as_it_was_and_by_anyone():
    """Our reader gives back the body; any JSON reader finds it with one more key, on lines of its own."""
    data = readable.to_json(BODY)

    assert readable.from_json(data, key="summary.json") == BODY
    assert {**BODY, "crc": json.loads(data)["crc"]} == json.loads(data)
    assert data.count(b"\n") > 8


def test_every_flipped_bit_of_json_is_noticed_or_says_the_same():
    """Each bit in turn: an error, or the very same content (a space that became another blank)."""
    data = readable.to_json(BODY)

    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            assert readable.from_json(bytes(flipped), key="summary.json") == BODY
        except StateError as error:
            assert "summary.json is damaged" in str(error)


def test_json_without_a_checksum_is_refused():
    """It may say anything."""
    for data in (b'{"items": 1}', b"[1]", b"3", b"", b"\xff"):
        with pytest.raises(StateError, match="no JSON with a checksum"):
            readable.from_json(data, key="summary.json")


def test_yaml_keeps_its_meaning():
    """The checksum is a comment in the last line."""
    data = readable.to_yaml("endpoint:\n  model: m")

    readable.check_yaml(data, key="config.yaml")
    assert yaml.safe_load(data) == {"endpoint": {"model": "m"}}


def test_every_flipped_bit_of_yaml_is_noticed():
    """In the text, in the comment, in its line ends."""
    data = readable.to_yaml("endpoint:\n  model: m\n")

    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(StateError, match=r"config\.yaml was changed since"):
            readable.check_yaml(bytes(flipped), key="config.yaml")
