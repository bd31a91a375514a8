"""What the simulated model says: a function of (seed, item, repeat), right with a set probability.

An answer is filler reasoning, then a last line `Answer: X`. Its text is a list of tokens, so that what has been
streamed after t tokens is exactly the first t of them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalpipe.errors import ConfigError, DataError
from evalpipe.sim.profiles import Lengths, Work

# Words without digits, so that no scorer takes one for an answer.
_REASONING = """
so then we take the given rule and follow it step by step because each part holds while the next one is still open
now compare both sides keep what fits drop what does not check again note that nothing else changes here thus
"""
_FILLER_TOKENS = 8_192


@dataclass(frozen=True, slots=True)
class Question:
    """A row of the dataset as the server needs it."""

    item_id: str
    category: str
    question: str
    answer: str
    answer_type: str


class QuestionBank:
    """The dataset the server answers from."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._by_id: dict[str, Question] = {}
        self._by_text: dict[str, Question] = {}
        self._pools: dict[tuple[str, str], list[str]] = defaultdict(list)
        for question in questions:
            self._by_id[question.item_id] = question
            self._by_text.setdefault(question.question.strip(), question)
            self._pools[question.category, question.answer_type].append(question.answer)

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, *, item_id: str | None, text: str) -> Question | None:
        """Find by id, else by the text of a user message: the question alone, or with paragraphs after it."""
        if item_id is not None and item_id in self._by_id:
            return self._by_id[item_id]
        text = text.strip()
        while text:
            if (found := self._by_text.get(text)) is not None:
                return found
            text = text.rpartition("\n\n")[0].rstrip()
        return None

    def wrong_answer(self, question: Question, rng: random.Random) -> str:
        """Return an answer of the same kind that is not the right one, however it is spelled."""
        number = _number(question.answer)
        if number is not None:
            shifted = number + 1 + abs(number) // 4  # far enough for a scorer with a relative tolerance
            return str(int(shifted)) if shifted.is_integer() else repr(shifted)
        pool = self._pools[question.category, question.answer_type]
        start = rng.randrange(len(pool))
        right = _normalise(question.answer)
        others = (pool[(start + i) % len(pool)] for i in range(len(pool)))
        return next((other for other in others if _normalise(other) != right), "cannot be determined")


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: texts whose concatenation is the answer; correct: None when the server does not know the item."""

    tokens: Sequence[str]
    finish_reason: str
    correct: bool | None
    work: float

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class Answerer:
    """accuracy: probability of a right answer, by the hash of (seed, item, repeat); it moves no length."""

    def __init__(self, lengths: Lengths | Work, *, accuracy: float, seed: int, bank: QuestionBank | None) -> None:
        if not 0 <= accuracy <= 1:
            raise ConfigError(f"accuracy must lie in [0, 1], got {accuracy:g}")
        self._lengths = lengths
        self._accuracy = accuracy
        self._seed = seed
        self._bank = bank
        rng, words = random.Random("filler"), _REASONING.split()
        self._filler = [f" {rng.choice(words)}" for _ in range(_FILLER_TOKENS)]

    def find(self, *, item_id: str | None, text: str) -> Question | None:
        return None if self._bank is None else self._bank.find(item_id=item_id, text=text)

    def answer(
        self, question: Question | None, *, identity: str, repeat: int, prompt_tokens: int, max_tokens: int | None
    ) -> Answer:
        """Answer a question, or an unknown prompt by its identity (any text that tells it from others).

        Cut at max_tokens: no last line, finish_reason "length", never correct.
        """
        who = f"{self._seed}/{question.item_id if question is not None else identity}/{repeat}"
        demand = self._lengths.draw(random.Random(f"length/{who}"), prompt_tokens=prompt_tokens)
        correct, final = self._final(question, random.Random(f"verdict/{who}"))
        tail = ["\n", "Answer:", *_pieces(f" {final}")]
        count = max(demand.output_tokens, len(tail) + 1)
        start = random.Random(f"filler/{who}").randrange(_FILLER_TOKENS)
        if max_tokens is not None and count > max_tokens:
            return Answer(self._reasoning(start, max_tokens), "length", None if correct is None else False, demand.work)
        return Answer([*self._reasoning(start, count - len(tail)), *tail], "stop", correct, demand.work)

    def _final(self, question: Question | None, rng: random.Random) -> tuple[bool | None, str]:
        correct = rng.random() < self._accuracy
        if question is None or self._bank is None:
            return None, str(rng.randrange(1000))
        return correct, question.answer if correct else self._bank.wrong_answer(question, rng)

    def _reasoning(self, start: int, count: int) -> list[str]:
        tokens = self._filler[start : start + count]
        while len(tokens) < count:
            tokens += self._filler[: count - len(tokens)]
        return tokens


def read_questions(path: str | Path) -> QuestionBank:
    """Read a dataset: anything that evalpipe.data reads, with its usual column names.

    Rows without a reference answer are left out. Raises ConfigError for a source that cannot be used.
    """
    try:
        return QuestionBank(_from_parquet(Path(path)) or _from_any(str(path)))
    except DataError as error:
        raise ConfigError(f"the simulated server cannot answer from it: {error}") from None


def _from_parquet(path: Path) -> list[Question]:
    """Read our own kind of file at once, in a third of the time; empty for any other."""
    if path.suffix != ".parquet" or not path.is_file():
        return []
    import pyarrow.parquet as pq  # late: a third of a second, and only a dataset needs it

    with pq.ParquetFile(path) as file:  # read_table would load the dataset machinery: 0.9 s more
        if not {"item_id", "category", "question", "answer", "answer_type"} <= set(file.schema_arrow.names):
            return []
        rows = file.read(columns=["item_id", "category", "question", "answer", "answer_type"]).to_pylist()
    if any(row["answer"] is None for row in rows):
        return []
    return [Question(**{name: str(value or "") for name, value in row.items()}) for row in rows]


def _from_any(path: str) -> Iterator[Question]:
    from evalpipe.config import DatasetConfig
    from evalpipe.data import open_dataset

    with open_dataset(DatasetConfig(path=path, shuffle=False)) as dataset:
        for example in map(dataset.example, range(len(dataset))):
            if example.expected is not None:
                fields = example.fields
                yield Question(
                    item_id=example.item_id,
                    category=example.category,
                    question=str(fields.get("question") or fields.get("prompt") or ""),
                    answer=example.expected,
                    answer_type=str(fields.get("answer_type") or ""),
                )


def _pieces(text: str) -> list[str]:
    """Cut into pieces of about a token: 4 characters."""
    return [text[i : i + 4] for i in range(0, len(text), 4)]


def _number(text: str) -> float | None:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None  # past it a float is no longer the number; also nan and inf


def _normalise(text: str) -> str:
    """Fold what scorers fold: case, spaces, brackets, quotes, a closing dot; and numbers to one spelling."""
    number = _number(text)
    if number is not None:
        return repr(number)
    return "".join(c for c in text.casefold() if not c.isspace() and c not in "()[]{}'\"`").rstrip(".")
