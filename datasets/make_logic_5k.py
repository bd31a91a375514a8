"""Make logic-5k.parquet again, bit for bit: `python datasets/make_logic_5k.py` (needs the `dataset` extra).

Items come from reasoning-gym's generators with fixed seeds. What a comparison of texts or numbers cannot judge is left
out or asked differently: each question has one right answer, and the answer stored is that one.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import reasoning_gym

SEED = 20260714
INTEGER = re.compile(r"-?\d+")
SCHEMA = pa.schema([(n, pa.string()) for n in ("item_id", "category", "question", "answer", "answer_type", "metadata")])
DRAWS = 2**31  # items are made one by one when their index is asked for: a bound that is never reached


@dataclass(frozen=True, slots=True)
class Item:
    """What a family yields. extra goes into the metadata."""

    question: str
    answer: str
    extra: dict[str, Any] = field(default_factory=dict)


Adapt = Callable[[dict[str, Any]], Item | None]


def _as_is(entry: dict[str, Any]) -> Item | None:
    return Item(entry["question"], entry["answer"])


def _ascii(entry: dict[str, Any]) -> Item | None:
    """Leave out letters that a shift within A to Z does not move."""
    return _as_is(entry) if entry["answer"].isascii() else None


def _one_knight(entry: dict[str, Any]) -> Item:
    """Ask about the first person only: the generator's sentence fails on "a" for "an", one word does not."""
    name, terms = str(entry["metadata"]["names"][0]), entry["metadata"]["knight_knave_terms"]
    story, found, _ = entry["question"].partition(" So who is ")
    assert found, entry["question"]
    kinds = sorted((terms["knight"], terms["knave"]))
    question = f"{story} So which is {name}, {kinds[0]} or {kinds[1]}? Answer with one of these two words."
    return Item(question, terms["knight"] if entry["metadata"]["solution"][0] else terms["knave"])


def _sound_kinship(entry: dict[str, Any]) -> Item | None:
    """Leave out nieces, nephews and in-laws, which the generator names from the wrong side."""
    sound = {"mother", "father", "daughter", "son", "wife", "husband", "sister", "brother"}
    sound |= {"grandmother", "grandfather", "aunt", "uncle"}
    return _as_is(entry) if entry["answer"] in sound else None


def _one_needle(entry: dict[str, Any]) -> Item | None:
    """Leave out a haystack where two people fit the question."""
    wanted = entry["metadata"]["question"].removeprefix("Who ").partition("?")[0]
    return _as_is(entry) if entry["question"].count(f" {wanted}. ") == 1 else None


def _lettered_colours(entry: dict[str, Any]) -> Item:
    """Offer five of the cube's colours under letters."""
    rng = Random(entry["metadata"]["source_index"])
    wrong = sorted(set(entry["metadata"]["initial_state"].values()) - {entry["answer"]})
    colours = [entry["answer"], *rng.sample(wrong, min(4, len(wrong)))]
    rng.shuffle(colours)
    choices = dict(zip("ABCDE", colours, strict=False))
    options = "\n".join(f"{letter}) {colour}" for letter, colour in choices.items())
    question = entry["question"].replace("Provide only the color as your final answer.", "Answer with one letter.")
    letter = next(letter for letter, colour in choices.items() if colour == entry["answer"])
    return Item(f"{question.strip()}\n{options}", letter, {"choices": choices})


STATEMENT = re.compile(r"(All|No|Some) (\w+) are (not )?(\w+)")


def _undisputed_syllogism(entry: dict[str, Any]) -> Item | None:
    """Leave out what depends on whether a class may be empty, and answers that a check of all models denies."""
    texts = [entry["metadata"][key] for key in ("premise1", "premise2", "conclusion") if key in entry["metadata"]]
    statements = [match.groups() for match in map(STATEMENT.fullmatch, texts) if match]
    if len(statements) != 3:
        return None
    verdicts = {_follows(statements, may_be_empty=empty) for empty in (True, False)}
    return _as_is(entry) if verdicts == {entry["answer"] == "Yes"} else None


def _follows(statements: list[tuple[str, ...]], *, may_be_empty: bool) -> bool:
    """Say whether the last statement holds in every model of the others.

    A model says which of the kinds of thing (each in or out of every class) exist.
    """
    classes = sorted({name for _, subject, _, predicate in statements for name in (subject, predicate)})
    kinds = [frozenset(itertools.compress(classes, bits)) for bits in itertools.product((0, 1), repeat=len(classes))]
    for bits in itertools.product((0, 1), repeat=len(kinds)):
        model = list(itertools.compress(kinds, bits))
        if not may_be_empty and any(all(name not in kind for kind in model) for name in classes):
            continue
        *premises, conclusion = (_holds(statement, model) for statement in statements)
        if all(premises) and not conclusion:
            return False
    return True


def _holds(statement: tuple[str, ...], model: list[frozenset[str]]) -> bool:
    quantifier, subject, negated, predicate = statement
    inside = [(predicate in kind) != bool(negated) for kind in model if subject in kind]
    return {"All": all(inside), "No": not any(inside), "Some": any(inside)}[quantifier]


@dataclass(frozen=True, slots=True)
class Family:
    """How many items of one generator, how set, and how they are adapted."""

    name: str
    count: int
    options: dict[str, Any] = field(default_factory=dict)
    adapt: Adapt = _as_is
    answer_type: str | None = None  # None: numeric where the answer is an integer, else exact


FAMILIES = (
    Family("syllogism", 400, adapt=_undisputed_syllogism),
    Family("knights_knaves", 250, adapt=_one_knight),
    Family("knights_knaves", 150, {"n_people": 3}, adapt=_one_knight),
    Family("course_schedule", 350),
    Family("family_relationships", 350, adapt=_sound_kinship),
    Family("color_cube_rotation", 350, adapt=_lettered_colours, answer_type="choice"),
    Family("needle_haystack", 250, {"min_num_statements": 10, "max_num_statements": 40}, adapt=_one_needle),
    Family("needle_haystack", 50, {"min_num_statements": 200, "max_num_statements": 400}, adapt=_one_needle),
    Family("largest_island", 250),
    Family("rotten_oranges", 150, {"min_n": 5, "max_n": 10}),
    Family("chain_sum", 300),
    Family("basic_arithmetic", 250, {"operators": ["+", "-", "*"]}),
    Family("leg_counting", 300),
    Family("products", 200),
    Family("gcd", 200),
    Family("simple_equations", 200),
    Family("base_conversion", 250, answer_type="exact"),  # the digits are the answer, not their value
    Family("calendar_arithmetic", 300),
    Family("count_bits", 150),
    Family("spell_backward", 150),
    Family("caesar_cipher", 150, adapt=_ascii),
)


def make_rows() -> list[dict[str, str]]:
    """Draw every family in turn; a question that was drawn before is drawn again with the next index."""
    rows: list[dict[str, str]] = []
    seen: set[str] = set()
    numbers: Counter[str] = Counter()
    for family in FAMILIES:
        fresh = (row for row in _draw(family) if row["question"] not in seen)
        for row in itertools.islice(fresh, family.count):
            seen.add(row["question"])
            numbers[family.name] += 1
            rows.append({"item_id": f"{family.name}-{numbers[family.name]:04d}", **row})
    return rows


def _draw(family: Family) -> Iterator[dict[str, str]]:
    generator = reasoning_gym.create_dataset(family.name, seed=SEED, size=DRAWS, **family.options)
    for index in itertools.count():
        item = family.adapt(generator[index])
        if item is None:
            continue
        answer = str(item.answer).strip()
        source = {"source": f"reasoning-gym {version('reasoning-gym')}", "seed": SEED, "source_index": index}
        yield {
            "category": family.name,
            "question": item.question.strip(),
            "answer": answer,
            "answer_type": family.answer_type or ("numeric" if INTEGER.fullmatch(answer) else "exact"),
            "metadata": json.dumps({**source, **family.options, **item.extra}, sort_keys=True),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("logic-5k.parquet"))
    path = parser.parse_args().output
    rows = make_rows()
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    # Pinned: the defaults of pyarrow may change, and with them the bytes.
    pq.write_table(table, path, compression="zstd", compression_level=9, row_group_size=1000, write_page_checksum=True)
    for column in ("category", "answer_type"):
        for name, count in Counter(row[column] for row in rows).items():
            print(f"{column:12} {name:22} {count:5}")
    lengths = [len(row["question"]) for row in rows]
    print(f"items {len(rows)}, about {sum(lengths) // 4:,} tokens, longest question {max(lengths):,} characters")
    print(f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
