"""How an extracted answer is compared with the reference: one maker of comparisons a kind.

A comparison takes (expected, extracted), both plain text, and returns a value in [0, 1]. It raises ValueError where the
reference itself cannot be used: that is a fault of the data, never a wrong answer.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from evalpipe.scoring.extract import clean_answer
from evalpipe.scoring.numbers import Number, find_number, parse_number

Comparison = Callable[[str, str], float]

REL_TOL = 1e-6
ABS_TOL = 1e-9
MAX_PATTERN_CHARS = 2_000  # a pattern can cost the square of its text; a longer answer is no match
LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNKNOWN_LABELS = frozenset(LABELS[:10])  # the widest set in use where the choices are not told

_LABEL_ALONE = re.compile(r"(?:option|choice|answer)?\s*[(\[]?\s*([A-Za-z0-9])\s*[)\].:]?", re.IGNORECASE)
_LABEL_FIRST = re.compile(
    r"(?:(?:option|choice)\s+[(\[]?([A-Za-z0-9])\b|[(\[]([A-Za-z0-9])[)\]]|([A-Za-z0-9])(?:[).:\]]|\s+[-–—]\s))",
    re.IGNORECASE,
)
_HEDGE = re.compile(r"\s*(?:,|/|&|or\b|and\b)\s*[(\[]?[A-Za-z0-9](?:[)\].:]|$)", re.IGNORECASE)
_LABEL_IN_PARENTHESES = re.compile(r"\(([A-Za-z0-9])\)")


def exact(*, case_sensitive: bool = False) -> Comparison:
    """Compare as text: cleaned as answers are, NFKC, whitespace collapsed, case folded unless case_sensitive."""

    def compare(expected: str, extracted: str) -> float:
        left, right = (normalise(t, case_sensitive=case_sensitive) for t in (expected, extracted))
        return float(left == right)

    return compare


def normalise(text: str, *, case_sensitive: bool = False) -> str:
    folded = unicodedata.normalize("NFKC", clean_answer(text) or text)
    collapsed = " ".join(folded.split())
    return collapsed if case_sensitive else collapsed.casefold()


def numeric(*, rel_tol: float | None = None, abs_tol: float | None = None) -> Comparison:
    """Compare as numbers: |a - e| <= max(rel_tol |e|, abs_tol), in exact arithmetic.

    None: 1e-6 and 1e-9, but whole numbers must then be equal (a sum that is off by one is wrong however large it is).
    A percent sign on one side only may mean 50 or 0.5: either reading may fit. An answer without a number, or with
    several, is wrong. Raises ValueError where the reference is not a number.
    """
    is_default = rel_tol is None and abs_tol is None
    relative = Fraction(REL_TOL if rel_tol is None else rel_tol)
    absolute = Fraction(ABS_TOL if abs_tol is None else abs_tol)

    def is_close(want: Fraction, got: Fraction) -> bool:
        if is_default and want.denominator == got.denominator == 1:
            return want == got
        return abs(want - got) <= max(relative * abs(want), absolute)

    def compare(expected: str, extracted: str) -> float:
        want = parse_number(clean_answer(expected))
        if want is None:
            raise ValueError(f"the reference answer {expected[:60]!r} is not a number")
        got = parse_number(extracted) or find_number(extracted)
        return float(got is not None and any(is_close(w, g) for w, g in _readings(want, got)))

    return compare


def _readings(want: Number, got: Number) -> list[tuple[Fraction, Fraction]]:
    if want.is_percent == got.is_percent:
        return [(want.value, got.value)]
    if want.is_percent:
        return [(want.value, got.value), (want.value / 100, got.value)]
    return [(want.value, got.value), (want.value, got.value / 100)]


def choice(choices: Mapping[str, str] | None = None) -> Comparison:
    """Compare the label of a multiple choice: "B", "(B)", "b) text", "option B", or the text of the choice.

    choices: label -> text; None where they are not known: labels A to J, and other references compared as text.
    Raises ValueError where the reference is neither a label nor one of the texts.
    """
    labels = frozenset(choices) if choices else _UNKNOWN_LABELS
    by_text = {normalise(text): label for label, text in (choices or {}).items()}
    as_text = exact()

    def label_of(answer: str) -> str | None:
        return _find_label(answer, labels) or by_text.get(normalise(answer))

    def compare(expected: str, extracted: str) -> float:
        want = label_of(clean_answer(expected))
        if want is None and choices:
            raise ValueError(f"the reference answer {expected[:60]!r} is neither one of {sorted(labels)} nor a choice")
        return as_text(expected, extracted) if want is None else float(label_of(extracted) == want)

    return compare


def _find_label(answer: str, labels: frozenset[str]) -> str | None:
    """Return the label an answer starts with, or the only one it holds in parentheses; upper case.

    An answer that hedges, "(A) or (B)", has none.
    """
    match = _LABEL_ALONE.fullmatch(answer) or _LABEL_FIRST.match(answer)
    if match and _HEDGE.match(answer, match.end()):
        return None
    if match and (label := next(g for g in match.groups() if g).upper()) in labels:
        return label
    inside = {m.upper() for m in _LABEL_IN_PARENTHESES.findall(answer)} & labels
    return inside.pop() if len(inside) == 1 else None


def read_choices(value: Any) -> dict[str, str] | None:
    """Read a dataset's column of choices: a list of texts, {"label": [..], "text": [..]} or {label: text}."""
    if isinstance(value, Mapping) and {"label", "text"} <= set(value):
        return {str(k).upper(): str(v) for k, v in zip(value["label"], value["text"], strict=True)}
    if isinstance(value, Mapping):
        return {str(k).upper(): str(v) for k, v in value.items()} or None
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return dict(zip(LABELS, map(str, value), strict=False)) or None
    return None


def pattern(*, fixed: str | None = None) -> Comparison:
    """Compare by a regular expression that must match the whole answer: `fixed`, or else the reference.

    An answer of more than `MAX_PATTERN_CHARS` does not match. Patterns whose time grows exponentially are the user's.
    Raises re.error at once where fixed is not valid, ValueError later where a reference is not.
    """
    always = re.compile(fixed) if fixed is not None else None

    def compare(expected: str, extracted: str) -> float:
        try:
            wanted = always or re.compile(expected)
        except re.error as error:
            raise ValueError(f"the reference answer is not a regular expression: {error}") from None
        return float(len(extracted) <= MAX_PATTERN_CHARS and wanted.fullmatch(extracted) is not None)

    return compare


def json_value() -> Comparison:
    """Compare one value read from JSON: as numbers where both are, else as text."""
    as_number, as_text = numeric(), exact()

    def compare(expected: str, extracted: str) -> float:
        both_numbers = parse_number(expected) is not None and parse_number(extracted) is not None
        return as_number(expected, extracted) if both_numbers else as_text(expected, extracted)

    return compare


def json_object() -> Comparison:
    """Compare two JSON objects, whatever the order of their keys. Raises ValueError where the reference is not JSON."""

    def compare(expected: str, extracted: str) -> float:
        want = json.dumps(json.loads(expected), sort_keys=True, ensure_ascii=False)
        return float(want == extracted)

    return compare


def is_tolerance(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
