"""Mathematical equality: 1/2 is 0.5, (x+1)^2 is x^2+2x+1. Ours where numbers or texts agree, else math-verify's.

A comparison may take seconds or for ever: it belongs into a process that is bounded in time (scoring/apart.py), where
the library's own alarms are switched off.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from evalpipe.errors import ConfigError
from evalpipe.scoring import compare
from evalpipe.scoring.numbers import parse_number


def equal() -> compare.Comparison:
    """Return the comparison. Raises ConfigError where the extra is not installed."""
    library = _load()
    same_text, same_number = compare.exact(), compare.numeric()

    def is_equal(expected: str, extracted: str) -> float:
        if same_text(expected, extracted):
            return 1.0
        if parse_number(expected) is not None and same_number(expected, extracted):
            return 1.0
        want, got = (library.parse(f"${text}$", parsing_timeout=None) for text in (expected, extracted))
        if not want:
            raise ValueError(f"the reference answer {expected[:60]!r} is no mathematics")
        return float(library.verify(want, got, timeout_seconds=None))

    return is_equal


def _load() -> Any:
    try:
        library = importlib.import_module("math_verify")
    except ImportError:
        raise ConfigError("scorer math needs math-verify: pip install 'evalpipe[math]' on every node") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its alarms are off
    return library
