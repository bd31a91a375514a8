"""The server's verdict is the scorer's: the two judge the same answers independently of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalpipe.config import ScorerConfig
from evalpipe.records import Completion, Example, Status
from evalpipe.scoring.scorers import build_scorer
from evalpipe.sim.answers import Answerer, read_questions
from evalpipe.sim.profiles import Lengths

DATASET = Path(__file__).parents[2] / "datasets" / "logic-5k.parquet"


@pytest.mark.parametrize("max_tokens", [2048, 60])
def test_every_item_of_the_dataset_is_judged_alike(max_tokens: int):
    """Right, wrong and cut answers to all 5,000 items: `correct` of the ledger equals our score."""
    import pyarrow.parquet as pq

    bank = read_questions(DATASET)
    source = Answerer(Lengths(), accuracy=0.5, seed=1, bank=bank)
    judge = build_scorer(ScorerConfig())
    with pq.ParquetFile(DATASET) as file:
        rows = file.read().to_pylist()

    differing = []
    for index, row in enumerate(rows):
        question = bank.find(item_id=row["item_id"], text="")
        answer = source.answer(question, identity="", repeat=0, prompt_tokens=1, max_tokens=max_tokens)
        status = Status.OK if answer.finish_reason == "stop" else Status.TRUNCATED
        example = Example(index, row["item_id"], row["category"], row["answer"], row, row["metadata"])
        score = judge(example, Completion(answer.text, answer.finish_reason, status, 1.0, None, None, 1, 1))
        if (score is not None and score.correct) != answer.correct:
            differing.append((row["item_id"], answer.text[-40:]))

    assert differing == []
