"""Answers depend on seed, item and repeat alone, and are right as often as was set."""

from __future__ import annotations

import json

import pytest

from evalpipe.errors import ConfigError
from evalpipe.sim.answers import Answerer, Question, QuestionBank, read_questions
from evalpipe.sim.profiles import Lengths

NUMBERS = [Question(f"n{i}", "sums", f"What is {i} + {i}?\n\nSay it.", str(2 * i), "number") for i in range(400)]
NAMES = [Question(f"w{i}", "names", f"Who is {i}?", ("Ann", "ann.", "Bob", "Cy")[i % 4], "text") for i in range(40)]
BANK = QuestionBank(NUMBERS + NAMES)


def answerer(*, accuracy: float = 0.7, seed: int = 0, bank: QuestionBank | None = BANK) -> Answerer:
    return Answerer(Lengths(), accuracy=accuracy, seed=seed, bank=bank)


def ask(source: Answerer, question: Question | None, *, repeat: int = 0, max_tokens: int | None = None):
    return source.answer(question, identity="someone", repeat=repeat, prompt_tokens=10, max_tokens=max_tokens)


def test_same_item_same_answer():
    """Two servers with one seed say the same; another seed or repeat says something else."""
    question = NUMBERS[7]

    assert ask(answerer(), question) == ask(answerer(), question)
    assert ask(answerer(), question).tokens != ask(answerer(seed=1), question).tokens
    assert ask(answerer(), question).tokens != ask(answerer(), question, repeat=1).tokens


def test_accuracy_is_met_and_changes_no_length():
    """Of 440 items about 70 % are right; at accuracy 1 all, with the same number of tokens."""
    usual, best = answerer(), answerer(accuracy=1.0)
    answers = [ask(usual, q) for q in NUMBERS + NAMES]
    perfect = [ask(best, q) for q in NUMBERS + NAMES]

    assert sum(a.correct for a in answers) / 440 == pytest.approx(0.7, abs=0.06)
    assert all(a.correct for a in perfect)
    longer = [(a, b) for a, b in zip(answers, perfect, strict=True) if len(a.tokens) != len(b.tokens)]
    assert all(len(a.tokens) < 12 for a, b in longer)  # only where the last line is all there is


def test_last_line_is_the_answer_and_the_verdict_is_true():
    """A right answer ends with the expected text, a wrong one with something else of the same kind."""
    source = answerer(accuracy=0.5)
    for question in NUMBERS + NAMES:
        answer = ask(source, question)
        final = answer.text.splitlines()[-1].removeprefix("Answer: ")

        assert answer.finish_reason == "stop"
        if answer.correct:
            assert final == question.answer
        else:
            assert final.strip(".").casefold() != question.answer.strip(".").casefold()
            assert question.category != "sums" or final.isdigit()


def test_max_tokens_cuts_before_the_answer():
    """A cut answer has exactly max_tokens tokens, says so, gives no answer and is not correct."""
    answer = ask(answerer(accuracy=1.0), NUMBERS[0], max_tokens=6)

    assert (len(answer.tokens), answer.finish_reason, answer.correct) == (6, "length", False)
    assert "Answer" not in answer.text


def test_tokens_are_about_four_characters():
    """The text is as long as its token count says."""
    source = answerer()
    answer = next(a for q in NUMBERS if len((a := ask(source, q)).tokens) > 300)

    assert 3 <= len(answer.text) / len(answer.tokens) <= 7


@pytest.mark.parametrize(
    "text",
    [
        "What is 3 + 3?\n\nSay it.",
        "What is 3 + 3?\n\nSay it.\n\nThink step by step.",
        "  What is 3 + 3?\n\nSay it.\n\nThink.\n\nAnswer on the last line.\n",
    ],
)
def test_item_is_found_by_its_text(text: str):
    """The question alone or with paragraphs after it, even when it has paragraphs of its own."""
    assert BANK.find(item_id=None, text=text) is NUMBERS[3]


def test_item_is_found_by_its_id_first():
    """The header's id wins; an unknown id falls back to the text."""
    assert BANK.find(item_id="n9", text="Who is 1?") is NUMBERS[9]
    assert BANK.find(item_id="nobody", text="Who is 1?") is NAMES[1]
    assert BANK.find(item_id=None, text="Who knows?") is None


def test_without_dataset_the_answer_is_a_hash():
    """An unknown prompt gets a stable answer without a verdict."""
    answer = ask(answerer(bank=None), None)

    assert answer.correct is None
    assert answer.text.splitlines()[-1].startswith("Answer: ")
    assert answer == ask(answerer(bank=None), None)


def test_dataset_files_are_read(tmp_path):
    """Whatever evalpipe reads, by its usual column names; rows without an answer are left out, no file is refused."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"item_id": "a", "question": "Q?", "answer": "7", "category": "c", "answer_type": "number", "x": 1}]
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    (tmp_path / "other.csv").write_text("id,prompt,target\na,Q?,7\nb,P?,\n")

    for name in ("d.jsonl", "d.parquet"):
        found = read_questions(tmp_path / name).find(item_id="a", text="")
        assert found == Question("a", "c", "Q?", "7", "number")
    assert read_questions(tmp_path / "other.csv").find(item_id=None, text="Q?") == Question("a", "", "Q?", "7", "")
    with pytest.raises(ConfigError, match="no dataset at"):
        read_questions(tmp_path / "none.jsonl")
