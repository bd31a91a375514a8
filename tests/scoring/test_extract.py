"""The final answer of a response: by custom, by pattern, out of JSON, and from text made to hurt."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.scoring.extract import MAX_ANSWER_CHARS, TAIL_CHARS, clean_answer, extract_answer, extract_json


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Let me think.\nAnswer: 42", "42"),
        ("ANSWER : Paris.", "Paris"),
        ("**Answer:** 42", "42"),
        ("**Answer**: **42**", "42"),
        ("### Final Answer: `x + 1`", "x + 1"),
        ("The final answer is 7.", "7"),
        ("Final answer: (B)", "(B)"),
        ("So the answer is $12$. I hope it is correct.", "12"),
        ("Final Answer: The final answer is $8$. I hope it is correct.", "8"),
        ("First guess. Answer: 1\nNo. Answer: 2", "2"),
        ("**Answer:**\n\n42\n", "42"),
        ("Answer: \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("Answer: \\(x^2\\)", "x^2"),
        ("Answer: \\text{blue}", "blue"),
        ('Answer: "Zoey is a knight".', "Zoey is a knight"),
        ("Answer: ['-31.5', '12']", "['-31.5', '12']"),
        ("答えは Answer：７", "７"),
        ("Answer: 42\n\nNote: the answer is positive because squares are.", "42"),
        ("<think>Answer: 3? no</think>Answer: 4", "4"),
    ],
)
def test_labelled_answers_are_found(text, answer):
    """Every customary way to announce an answer is read, the last one counts, and its wrapping is gone."""
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{5} and then \\boxed{\\sqrt{6}}", "\\sqrt{6}"),
        ("the answer is not 5, thus $\\boxed{6}$.", "6"),
        ("\\boxed{a \\{ b}", "a \\{ b"),
        ("{{{ \\boxed{9} \\boxed{8", "9"),
        ("I count.\nthe answer is 12, since 3 * 4 is.", "12, since 3 * 4 is"),
        ("1 + 1 makes\n\n  2.  \n\n```\n", "2"),
        ("# Result\n# 17", "17"),
        ("", ""),
        (" \n**\n---\n", ""),
    ],
)
def test_unlabelled_answers_are_found(text, answer):
    """Without a label the last balanced box counts, then a sentence, then the last line that says something."""
    assert extract_answer(text) == answer


def test_pattern_takes_its_last_match():
    """A user's pattern decides alone: group 1 of its last match."""
    text = "<a>1</a> Answer: 5 <a> 2 </a>"

    assert extract_answer(text, r"<a>(.*?)</a>") == "2"


def test_pattern_without_a_match_finds_nothing():
    """A user's pattern that does not match is no reason to guess by custom."""
    assert extract_answer("Answer: 5", r"<a>(.*?)</a>") == ""


@pytest.mark.timeout(20)  # a square of one megabyte would take hours
@pytest.mark.parametrize(
    "unit",
    [
        *("a", "{", "}", "\\boxed{", "answer", "Answer:", "Answer: ", "the answer is ", "final answer is A. B"),
        *("\n", "*", "`\n", "\"'", "$", "\\", " ."),
    ],
)
def test_a_megabyte_of_anything_is_bounded(unit):
    """The work depends on the tail alone: a prefix of any size changes neither the result nor the cost."""
    text = unit * (1_000_000 // len(unit))

    found = extract_answer(text)

    assert found == extract_answer(text[-TAIL_CHARS:])
    assert len(found) <= MAX_ANSWER_CHARS


@given(st.text(alphabet="aB1 \n*_`$\"'.:{}\\", max_size=200), st.text(max_size=50))
def test_extraction_only_cuts_out(noise, word):
    """Whatever the text, the answer is a piece of it: nothing is made up, nothing raises."""
    found = extract_answer(noise + word)

    assert found in noise + word


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9 +/-]{0,20}[A-Za-z0-9])?", fullmatch=True))
def test_a_plain_answer_survives(answer):
    """What has no wrapping comes back unchanged, from behind any reasoning."""
    assert extract_answer(f"Some thoughts, 3 of them.\nAnswer: {answer}") == answer
    assert clean_answer(answer) == answer


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('Here:\n```json\n{"answer": "Paris", "n": 1}\n```', "answer", "Paris"),
        ('{"a": 1} then {"a": 2.50}', "a", "2.5"),
        ('{"a": {"b": true}}', "a.b", "true"),
        ('{"a": {"b": true}}', "a.c", ""),
        ('{"a": null}', "a", ""),
        ('use {x} and \\frac{1}{2}: {"a": [1, "ü"]}', "a", '[1, "ü"]'),
        ('{"b": 1, "a": 2}', None, '{"a": 2, "b": 1}'),
        ("no object", "a", ""),
        ('{"a": 1', "a", ""),
    ],
)
def test_json_fields_are_read(text, field, value):
    """The last whole object counts, whatever prose, braces or fences stand around it."""
    assert extract_json(text, field) == value


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit", ["{", '{"', '{"a":', '{"a":[1,1,1,1,1,1,1,1],"b":', "[{", '{"a":' + "9" * 5000, '{"a": 1} ']
)
def test_a_megabyte_of_json_is_bounded(unit):
    """Nested and cut objects cost a few passes over the tail, not one pass for each brace."""
    found = extract_json(unit * (1_000_000 // len(unit)), "a")

    assert found in ("", "1")


def test_json_survives_a_number_too_long_to_read():
    """Digits beyond what Python converts spoil their own object only."""
    text = json.dumps({"a": "first"}) + ' {"a": ' + "9" * 5000 + '} {"a": "last"}'

    assert extract_json(text, "a") == "last"
