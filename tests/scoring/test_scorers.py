"""Scorers as users name them: one table each, then what they refuse."""

import math
from typing import Any

import numpy as np
import pytest

from evalpipe.config import ScorerConfig
from evalpipe.errors import ConfigError, DataError
from evalpipe.records import Completion, Example, Score, Status
from evalpipe.scoring.scorers import build_scorer


def example(expected: str | None, **fields: Any) -> Example:
    return Example(item_index=0, item_id="q-1", category="", expected=expected, fields=fields)


def completion(text: str, status: Status = Status.OK) -> Completion:
    return Completion(text, "stop", status, rtt_s=1.0, ttft_s=None, tpot_s=None, prompt_tokens=1, output_tokens=1)


def score(name: str, expected: str | None, answer: str, *, options: dict[str, Any] | None = None, **fields: Any):
    scorer = build_scorer(ScorerConfig(name=name, options=options or {}))
    return scorer(example(expected, **fields), completion(f"Some thoughts.\nAnswer: {answer}"))


@pytest.mark.parametrize(
    ("expected", "answer", "options", "correct"),
    [
        ("Paris", "**paris**.", {}, True),
        ("Paris", "paris", {"case_sensitive": True}, False),
        ("New  York", "new york", {}, True),
        ("ﬁne", "FINE", {}, True),
        ("STRASSE", "straße", {}, True),
        ("yes.", "yes", {}, True),
        ("['-31.5', '12']", "['-31.5', '12']", {}, True),
        ("Paris", "Paris, France", {}, False),
        ("*", "x", {}, False),
    ],
)
def test_exact(expected, answer, options, correct):
    """Text is equal up to case, width, blanks and wrapping, and no further."""
    assert score("exact", expected, answer, options=options).correct is correct


@pytest.mark.parametrize(
    ("expected", "answer", "options", "correct"),
    [
        ("42", "42.0", {}, True),
        ("1234", "$1,234", {}, True),
        ("0.75", "3/4", {}, True),
        ("0.333333333", "1/3", {}, True),
        ("0.33", "1/3", {}, False),
        ("0.33", "1/3", {"rel_tol": 0.02}, True),
        ("100", "103", {"abs_tol": 3}, True),
        ("100", "104", {"abs_tol": 3}, False),
        ("1500", "1.5e3", {}, True),
        ("0.5", "50%", {}, True),
        ("50", "50%", {}, True),
        ("50%", "0.5", {}, True),
        ("50%", "50", {}, True),
        ("50%", "51%", {}, False),
        ("42", "42 apples", {}, True),
        ("42", "41 or 42", {}, False),
        ("42", "forty-two", {}, False),
        ("9007199254740993", "9007199254740992", {}, False),
        ("1234567", "1234568", {}, False),
        ("1234567", "1234568", {"rel_tol": 1e-6}, True),
        ("0", "0.0000000001", {}, True),
        ("-3", "3", {}, False),
    ],
)
def test_numeric(expected, answer, options, correct):
    """Numbers are equal within the tolerance, whole numbers exactly unless a tolerance was asked for."""
    assert score("numeric", expected, answer, options=options).correct is correct


CHOICES = ["red", "blue", "a green house", "none"]


@pytest.mark.parametrize(
    ("expected", "answer", "choices", "correct"),
    [
        ("B", "B", None, True),
        ("B", "(b)", None, True),
        ("B", "B.", None, True),
        ("B", "b) blue", None, True),
        ("B", "B: blue", None, True),
        ("B", "[B] blue", None, True),
        ("B", "option B, since it is the sky", None, True),
        ("B", "blue (B)", None, True),
        ("B", "C", None, False),
        ("A", "(A) or (B)", None, False),
        ("A", "A, B", None, False),
        ("A", "A. a red house, (B) is not", None, True),
        ("A", "A dog barked", None, False),
        ("B", "blue", None, False),
        ("blue", "Blue", None, True),
        ("B", "blue", CHOICES, True),
        ("blue", "(B)", CHOICES, True),
        ("C", "A green house", CHOICES, True),
        ("A", "A green house", CHOICES, False),
        ("B", "blue", {"A": "red", "B": "blue"}, True),
        ("2", "blue", {"label": ["1", "2"], "text": ["red", "blue"]}, True),
        ("J", "J", None, True),
    ],
)
def test_choice(expected, answer, choices, correct):
    """A label in any dress, or the text of its choice where the choices are known, is the answer."""
    fields = {} if choices is None else {"choices": choices}

    assert score("choice", expected, answer, **fields).correct is correct


def test_choice_reads_the_column_it_is_told():
    """The option column names the field that holds the choices."""
    found = score("choice", "B", "blue", options={"column": "alternatives"}, alternatives=CHOICES)

    assert found.correct


@pytest.mark.parametrize(
    ("expected", "answer", "options", "correct"),
    [
        (r"\d{3}", "123", {}, True),
        (r"\d{3}", "1234", {}, False),
        (None, "abc", {"pattern": "[a-c]+"}, True),
        ("ignored", "abd", {"pattern": "[a-c]+"}, False),
        (".*", "a" * 2_000, {}, True),
        (".*", "a" * 2_001, {}, False),
    ],
)
def test_regex(expected, answer, options, correct):
    """The whole answer must match the pattern: the reference, or the option, which needs no reference."""
    assert score("regex", expected, answer, options=options).correct is correct


@pytest.mark.parametrize(
    ("expected", "response", "options", "correct", "extracted"),
    [
        ("Paris", '```json\n{"city": "paris"}\n```', {"field": "city"}, True, "paris"),
        ("3", '{"n": 3.0}', {"field": "n"}, True, "3.0"),
        ("True", '{"ok": true}', {"field": "ok"}, True, "true"),
        ("3", '{"m": 3}', {"field": "n"}, False, ""),
        ('{"b": 1, "a": [2]}', 'so {"a": [2], "b": 1}', {}, True, '{"a": [2], "b": 1}'),
        ("3", "no object, Answer: 3", {"field": "n"}, False, ""),
    ],
)
def test_json(expected, response, options, correct, extracted):
    """A field of the object in the response is what is compared and what is stored as extracted."""
    scorer = build_scorer(ScorerConfig(name="json", options=options))

    assert scorer(example(expected), completion(response)) == Score(float(correct), correct, extracted)


@pytest.mark.parametrize(
    ("expected", "answer", "fields", "correct"),
    [
        ("12", "12.0", {}, True),
        ("12", "12.0", {"answer_type": "exact"}, False),
        ("B", "(b)", {"answer_type": "choice"}, True),
        ("B", "(b)", {}, False),
        ("[0-9]", "7", {"answer_type": "regex"}, True),
        ("12", "12.0", {"answer_type": "unheard of"}, True),
        ("12", "12.0", {"answer_type": None}, True),
    ],
)
def test_auto(expected, answer, fields, correct):
    """The answer_type column decides; without a known one, the look of the reference does."""
    assert score("auto", expected, answer, **fields).correct is correct


@pytest.mark.parametrize("name", ["exact", "numeric", "choice", "regex", "json", "auto", "none"])
def test_without_a_reference_there_is_no_verdict(name):
    """An example without a reference answer is not wrong: it has no score."""
    assert score(name, None, "5") is None


def test_none_scores_nothing():
    """The scorer none gives no verdict even where there is a reference."""
    assert score("none", "5", "5") is None


@pytest.mark.parametrize("status", [Status.TRUNCATED, Status.FILTERED, Status.REFUSED])
def test_every_answer_is_scored_by_what_it_says(status):
    """A truncated, filtered or refused answer is an answer: right where the right answer stands in it."""
    scorer = build_scorer(ScorerConfig(name="exact"))

    verdicts = [scorer(example("5"), completion(text, status)) for text in ("Answer: 5", "", "I cannot help.")]

    assert [v.value for v in verdicts if v] == [1.0, 0.0, 0.0]


def test_an_empty_answer_is_never_right():
    """Nothing found is wrong, even against a pattern that would take it."""
    scorer = build_scorer(ScorerConfig(name="regex"))

    assert scorer(example(".*"), completion("")) == Score(0.0, False, "")


def test_answer_pattern_decides_what_is_compared():
    """The configured pattern replaces the customs of extraction."""
    scorer = build_scorer(ScorerConfig(name="exact", answer_pattern=r"\[(\w+)\]"))

    assert scorer(example("b"), completion("[a] then [b]. Answer: a")) == Score(1.0, True, "b")


def half(example: Example, completion: Completion) -> float:
    return 0.5


def whole_score(example: Example, completion: Completion) -> Score:
    return Score(1.0, True, "mine")


def weighted(example: Example, completion: Completion, *, weight: float) -> float:
    return weight


def broken(example: Example, completion: Completion) -> float:
    raise KeyError("no such column")


def too_much(example: Example, completion: Completion) -> float:
    return 1.5


def not_a_number(example: Example, completion: Completion) -> float:
    return math.nan


def narrow_float(example: Example, completion: Completion) -> Any:
    return np.float32(1.0)


async def unfinished(example: Example, completion: Completion) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("function", "options", "verdict"),
    [
        ("half", {}, Score(0.5, False, "5")),
        ("whole_score", {}, Score(1.0, True, "mine")),
        ("weighted", {"weight": 0.25}, Score(0.25, False, "5")),
        ("narrow_float", {}, Score(1.0, True, "5")),
    ],
)
@pytest.mark.parametrize("separator", [":", "."])
def test_a_users_function_scores(function, options, verdict, separator):
    """A plain function named by its module is a scorer; correct needs a full score, and no reference is needed."""
    assert score(f"{__name__}{separator}{function}", None, "5", options=options) == verdict


@pytest.mark.parametrize("function", ["broken", "too_much", "not_a_number"])
def test_a_failing_function_is_no_wrong_answer(function):
    """A scorer that raises or returns nonsense ends in DataError, which names item and scorer."""
    with pytest.raises(DataError, match=rf"{function} cannot judge item 'q-1'"):
        score(f"{__name__}:{function}", "5", "5")


@pytest.mark.parametrize(
    ("name", "expected", "fields"),
    [
        ("numeric", "many", {}),
        ("regex", "(", {}),
        ("json", "{", {}),
        ("choice", "E", {"choices": CHOICES}),
    ],
)
def test_a_bad_reference_is_no_wrong_answer(name, expected, fields):
    """A reference that cannot be used is a fault of the data: no verdict."""
    scorer = build_scorer(ScorerConfig(name=name))

    with pytest.raises(DataError, match=f"scorer {name} cannot judge item 'q-1'"):
        scorer(example(expected, **fields), completion('{"a": 1}\nAnswer: A'))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "exakt"}, "unknown 'exakt'; did you mean 'exact'"),
        ({"name": "zzz"}, "known: exact, numeric, choice, regex, json, math, auto, none"),
        ({"name": "numeric", "options": {"rel_tool": 1}}, "unknown 'rel_tool'; did you mean 'rel_tol'"),
        ({"name": "numeric", "options": {"rel_tol": "much"}}, "rel_tol must be a number of at least 0, got 'much'"),
        ({"name": "numeric", "options": {"abs_tol": -1}}, "abs_tol must be"),
        ({"name": "exact", "options": {"case_sensitive": "no"}}, "must be true or false, got 'no'"),
        ({"name": "regex", "options": {"pattern": "("}}, "pattern must be a regular expression"),
        ({"name": "regex", "options": {"pattern": 5}}, "pattern must be a regular expression"),
        ({"name": "json", "options": {"field": ""}}, "field must be the name"),
        ({"name": "choice", "options": {"column": 3}}, "column must be the name"),
        ({"name": "auto", "options": {"rel_tol": 1}}, "unknown 'rel_tol'; known: none"),
        ({"name": "none", "options": {"x": 1}}, "known: none"),
        ({"name": "exact", "answer_pattern": "("}, "answer_pattern is not a regular expression"),
        ({"name": "exact", "answer_pattern": "abc"}, "needs a group"),
        ({"name": "no_such_module:f"}, "cannot load 'no_such_module:f'"),
        ({"name": f"{__name__}:nothing"}, "cannot load"),
        ({"name": f"{__name__}:CHOICES"}, "must be a plain function, got list"),
        ({"name": f"{__name__}:unfinished"}, "must be a plain function"),
        ({"name": f"{__name__}:half", "options": {"weight": 1}}, "must take .* the options \\['weight'\\]"),
        ({"name": f"{__name__}:weighted"}, "missing a required argument: 'weight'"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(settings, message):
    """A wrong name, option, pattern or function is a ConfigError that says what would do."""
    with pytest.raises(ConfigError, match=message):
        build_scorer(ScorerConfig(**settings))
