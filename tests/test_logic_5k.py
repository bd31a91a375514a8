"""The file in datasets/ is the one its README describes, and its answers are right where arithmetic can tell."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

FOLDER = Path(__file__).parents[1] / "datasets"
FILE = FOLDER / "logic-5k.parquet"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return pq.read_table(FILE, page_checksum_verification=True).to_pylist()


def test_file_is_the_one_described():
    """The README's sha256 is that of the file beside it."""
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()

    assert re.findall(r"[0-9a-f]{64}", README) == [digest]


def test_five_thousand_distinct_items(rows):
    """No id and no question is there twice, and no cell is empty."""
    ids, questions = {row["item_id"] for row in rows}, {row["question"] for row in rows}

    assert len(rows) == len(ids) == len(questions) == 5000
    assert all(all(row.values()) for row in rows)


def test_counts_are_those_of_the_readme(rows):
    """Each family has as many items as the README's table says; there are at least ten."""
    counts = Counter(row["category"] for row in rows)
    table = dict(re.findall(r"^\| (\w+) \| ([\d,]+) \|", README, flags=re.MULTILINE))

    assert len(counts) >= 10
    assert {name: int(count) for name, count in table.items()} == counts


def test_lengths_vary_within_the_budget(rows):
    """Some 50 prompts have 1,500 tokens or more; all together stay below 700,000."""
    tokens = [len(row["question"]) // 4 for row in rows]

    assert 40 <= sum(count >= 1500 for count in tokens) <= 60
    assert sum(tokens) < 700_000


def test_answers_fit_their_type(rows):
    """Scoring needs nothing but the answer: a number, one of the letters offered, or text."""
    numeric = [row["answer"] for row in rows if row["answer_type"] == "numeric"]
    choices = [
        (row["answer"], json.loads(row["metadata"])["choices"]) for row in rows if row["answer_type"] == "choice"
    ]

    assert {row["answer_type"] for row in rows} == {"exact", "numeric", "choice"}
    assert all(re.fullmatch(r"-?\d+", answer) for answer in numeric)
    assert all(answer in offered for answer, offered in choices)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


@pytest.mark.parametrize(
    ("family", "solve"),
    [
        ("gcd", lambda question: str(math.gcd(*_numbers(question)))),
        ("products", lambda question: str(math.prod(_numbers(question)))),
        ("chain_sum", lambda question: str(sum(_numbers(question.replace("- ", "-"))))),
        ("count_bits", lambda question: str(_numbers(question)[-1].bit_count())),
        ("spell_backward", lambda question: question.rpartition(" ")[2][::-1]),
    ],
)
def test_answers_are_right(rows, family: str, solve: Callable[[str], str]):
    """Solved again without the generator, every item of the family has the stored answer."""
    items = [row for row in rows if row["category"] == family]

    wrong = [row["item_id"] for row in items if solve(row["question"]) != row["answer"]]

    assert items
    assert wrong == []
