"""Score stored answers again: rows of parts/ in, the same rows with new verdicts out. Nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from evalpipe.records import Completion, Example, Score, Status
from evalpipe.scoring.scorers import Scorer


def score_table(table: pa.Table, scorer: Scorer) -> pa.Table:
    """Return the table with score, correct and extracted made anew; failed rows have none, as before.

    Raises DataError when the scorer cannot judge an answer.
    """
    scores = [_score(row, scorer) for row in table.to_pylist()]
    columns = {
        "score": [score.value if score else None for score in scores],
        "correct": [score.correct if score else None for score in scores],
        "extracted": [score.extracted if score else None for score in scores],
    }
    for name, values in columns.items():
        position = table.schema.get_field_index(name)
        field = table.schema.field(position)
        table = table.set_column(position, field, pa.array(values, type=field.type))
    return table


def _score(row: Mapping[str, Any], scorer: Scorer) -> Score | None:
    if row["status"] == Status.FAILED:
        return None
    fields = json.loads(row["metadata"])
    example = Example(
        row["item_index"], row["item_id"], row["category"], row["expected"], fields, metadata=row["metadata"]
    )
    completion = Completion(
        text=row["response"] or "",
        finish_reason=row["finish_reason"] or "",
        status=Status(row["status"]),
        rtt_s=row["rtt_s"] or 0.0,
        ttft_s=row["ttft_s"],
        tpot_s=row["tpot_s"],
        prompt_tokens=row["prompt_tokens"] or 0,
        output_tokens=row["output_tokens"] or 0,
        reasoning=row["reasoning"] or "",
    )
    return scorer(example, completion)
