"""The words and numbers at the top of a page and in its tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from evalpipe.control.build import resolve_law
from evalpipe.endpoint.failures import TABLE
from evalpipe.report.chart import duration
from evalpipe.report.source import Stored

SHOWN_MESSAGE = 160  # characters
BOUNDS: Mapping[str, str] = {
    "server": "The server was busy: more requests in flight would have waited there.",
    "client CPU": "This side was busy: workers had no CPU left, so latencies are too long. Use more cores or workers.",
    "limit": "The server would have taken more than the largest limit allowed. Raise control.max_limit.",
    "quota": "A quota of requests or tokens a minute set the pace.",
    "budget": "A budget ended the run.",
    "data": "There was too little work to fill the server.",
}


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One line of the table of scores. accuracy, low, high: percent, None where nothing was scored."""

    name: str
    count: int
    failed: int
    accuracy: float | None
    low: float | None
    high: float | None
    is_all: bool = False

    @property
    def shown(self) -> str:
        return "-" if self.accuracy is None else f"{self.accuracy / 100:.3f}"

    @property
    def interval(self) -> str:
        return "" if self.low is None or self.high is None else f"{self.low / 100:.3f} – {self.high / 100:.3f}"


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Attempts that failed in one way. items: results that ended so. meaning, example: in words."""

    kind: str
    code: str
    attempts: int
    items: int
    meaning: str
    example: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result as one figure and one line. ending: why the run ended early, "" if it did not."""

    figure: str
    detail: str
    is_sure: bool
    ending: str


def verdict(summary: Mapping[str, Any]) -> Verdict:
    """Say the result as large as it deserves."""
    score, items = summary.get("score"), summary["items"]
    why, code = summary.get("why", ""), summary.get("exit_code")
    ending = f"{why} (exit {code})" if why else ""
    if score is None or not score["conclusive"]:
        word = f"{items['ok']:,} of {items['expected']:,} answered"
        detail = summary["headline"].removeprefix("INCONCLUSIVE: ")
        return Verdict(word if score is None else "inconclusive", detail, False, ending)
    interval = score["interval"]
    detail = f"accuracy, 95 % interval {interval['low']:.3f} – {interval['high']:.3f}, {score['scored']:,} scored"
    return Verdict(f"{score['accuracy']:.3f}", detail, True, ending)


def bound_sentence(cause: str) -> str:
    return BOUNDS.get(cause, "")


def facts(run: Stored) -> list[tuple[str, str]]:
    """Return what ran, as label and value."""
    summary, config, items = run.summary, run.config, run.summary["items"]
    told = []
    if config is not None:
        told += [("Model", config.endpoint.model or "-"), ("Endpoint", config.endpoint.base_url or "-")]
        law = summary["limit"]["law"] if "limit" in summary else resolve_law(config.control.law)[0]
        told += [("Dataset", config.dataset.path.rpartition("/")[2]), ("Law", law)]
    counted = f"{items['ok']:,} of {items['expected']:,}" + (f", {items['failed']:,} failed" if items["failed"] else "")
    told.append(("Answered", counted))
    if rate := summary.get("rate"):
        told += [("Time", duration(round(rate["elapsed_s"]))), ("Items", f"{rate['items_per_s']:.1f} /s")]
        told += [("Output", f"{rate['output_tokens_per_s']:,.0f} tokens/s"), ("Retries", f"{rate['retries']:,}")]
    for name, label in (("rtt_s", "Latency P50, P99"), ("ttft_s", "First token P50, P99")):
        if quantiles := summary["latency"][name]:
            told.append((label, f"{_seconds(quantiles['p50'])}, {_seconds(quantiles['p99'])}"))
    if limit := summary.get("limit"):
        told.append(("Limit", f"{limit['final']:.0f} at the end, {limit['mean']:.0f} on average"))
    return told


def score_rows(summary: Mapping[str, Any]) -> list[ScoreRow]:
    """Return a line for each category and one for all; nothing where nothing was scored."""
    if summary["score"] is None:
        return []
    every = {"category": "all", "items": summary["items"], "score": summary["score"]}
    rows = [_score_row(category) for category in summary["categories"]]
    return [*rows, _score_row(every, is_all=True)]


def _score_row(category: Mapping[str, Any], *, is_all: bool = False) -> ScoreRow:
    items, score = category["items"], category["score"]
    name = category["category"] or "(none)"
    count = items["expected"] if items["expected"] is not None else items["ok"] + items["failed"]
    if score is None:
        return ScoreRow(name, count, items["failed"], None, None, None, is_all)
    figures = (score["accuracy"], score["interval"]["low"], score["interval"]["high"])
    accuracy, low, high = (round(100 * figure, 2) for figure in figures)
    return ScoreRow(name, count, items["failed"], accuracy, low, high, is_all)


def failure_rows(run: Stored) -> list[FailureRow]:
    """Return a line for each kind and code of failed attempts, the most frequent first, and for items never sent."""
    failed = run.attempts.filter(pc.not_equal(run.attempts["kind"], "ok"))
    counted = (
        failed.group_by(["kind", "code"], use_threads=False)
        .aggregate([("message", "first"), ("message", "count")])
        .to_pylist()
    )
    left = dict(run.summary["failures"])
    rows = []
    for row in sorted(counted, key=lambda row: (-row["message_count"], row["kind"], row["code"])):
        items = left.pop(row["kind"], 0)
        rows.append(_failure_row(row["kind"], row["code"], row["message_count"], items, row["message_first"]))
    return rows + [_failure_row(kind, "", 0, items, "") for kind, items in left.items()]


def _failure_row(kind: str, code: str, attempts: int, items: int, message: str) -> FailureRow:
    meaning = TABLE[kind].line if kind in TABLE else ""
    example = " ".join(message.split())
    example = "" if example.startswith(meaning) and len(example) < len(meaning) + 12 else example
    return FailureRow(kind, code, attempts, items, meaning, example[:SHOWN_MESSAGE])


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
