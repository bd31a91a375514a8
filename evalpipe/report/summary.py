"""What a run says in numbers: a table of results in, one frozen Summary out. No I/O, no printing, no clock.

The rule that keeps it honest: a failed or missing result has no verdict. It is never a wrong answer; it widens the
bounds, and too many of them make the whole summary inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evalpipe.errors import StateError
from evalpipe.records import Status
from evalpipe.scoring.accuracy import Accuracy, Verdicts, measure

#: Columns of parts/ that are read here; a caller may load no others.
COLUMNS = (
    *("item_index", "repeat", "generation", "status", "category", "expected", "score", "correct", "error_kind"),
    *("rtt_s", "ttft_s", "prompt_tokens", "output_tokens", "cached_tokens", "usage_source"),
)
TABLE_HEADER = ("category", "n", "ok", "failed", "missing", "accuracy", "95 % interval")
MAX_NAME_CHARS = 40  # of a category in the plain table


@dataclass(frozen=True, slots=True)
class Items:
    """Counts of results (items times repeats). ok: answers, of which truncated, filtered and refused are parts.

    expected and missing are None where nobody said how many there should be; else ok + failed + missing = expected.
    """

    expected: int | None
    ok: int
    failed: int
    missing: int | None
    truncated: int
    filtered: int
    refused: int


@dataclass(frozen=True, slots=True)
class Category:
    """One line of the table. name "": of the items that have none."""

    name: str
    items: Items
    accuracy: Accuracy | None

    def to_dict(self) -> dict[str, Any]:
        score = self.accuracy.to_dict() if self.accuracy else None
        return {"category": self.name, "items": asdict(self.items), "score": score}


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of a latency in seconds, over answers."""

    count: int
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sums over answers. uncounted: answers whose server told no usage; they add nothing."""

    prompt: int
    output: int
    cached: int
    uncounted: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole run. accuracy None: nothing was scored. coverage: share of what is expected that has a verdict."""

    items: Items
    accuracy: Accuracy | None
    categories: tuple[Category, ...]
    failures: Mapping[str, int]
    latency: Mapping[str, Quantiles | None]
    tokens: Tokens
    coverage: float
    is_conclusive: bool
    headline: str

    def to_dict(self) -> dict[str, Any]:
        """Return the keys items, score, categories, failures, latency, tokens and headline, ready for JSON."""
        quality = {"coverage": self.coverage, "conclusive": self.is_conclusive}
        return {
            "headline": self.headline,
            "items": asdict(self.items),
            "score": self.accuracy.to_dict() | quality if self.accuracy else None,
            "categories": [c.to_dict() for c in self.categories],
            "failures": dict(self.failures),
            "latency": {name: asdict(q) if q else None for name, q in self.latency.items()},
            "tokens": asdict(self.tokens),
        }


def select_newest(table: pa.Table) -> pa.Table:
    """Return the row users see of each (item_index, repeat), sorted by them.

    It is the newest generation that is an answer, else the newest: a failed retry never replaces an answer.
    """
    item, repeat, generation = (table[name].to_numpy() for name in ("item_index", "repeat", "generation"))
    order = np.lexsort((generation, _is_answer(table), repeat, item))
    item, repeat = item[order], repeat[order]
    is_last = np.ones(len(order), dtype=bool)
    is_last[:-1] = (item[1:] != item[:-1]) | (repeat[1:] != repeat[:-1])
    return table.take(order[is_last])


def summarise(
    table: pa.Table,
    *,
    expected_items: int,
    repeats: int = 1,
    coverage: float = 0.95,
    expected_by_category: Mapping[str, int] | None = None,
) -> Summary:
    """Sum up the rows users see (`select_newest`), which hold at least `COLUMNS` but generation.

    expected_items: items of the run. coverage: share of results with a verdict below which no accuracy is claimed.
    expected_by_category: items of each category, for missing counts and bounds there; None: unknown, unless nothing
    is missing at all.
    Rows without a reference answer leave the denominators, unless the scorer judged such rows.
    Raises StateError when a result occurs twice or does not belong to the run.
    """
    _check_keys(table, expected_items=expected_items, repeats=repeats)
    status, verdicts = _objects(table, "status"), _verdicts(table)
    items = _count(status, expected=expected_items * repeats)
    accuracy = measure(verdicts, expected=items.expected, repeats=repeats)
    reached = _coverage(items, accuracy)
    answers = table.filter(pa.array(_is_answer(table)))
    return Summary(
        items=items,
        accuracy=accuracy,
        categories=_by_category(
            table, verdicts, repeats=repeats, expected=expected_by_category, is_complete=items.missing == 0
        ),
        failures=_failures(table),
        latency={name: _quantiles(_floats(answers, name)) for name in ("rtt_s", "ttft_s")},
        tokens=_tokens(answers),
        coverage=reached,
        is_conclusive=reached >= coverage,
        headline=_headline(items, accuracy, reached=reached, threshold=coverage),
    )


def _verdicts(table: pa.Table) -> Verdicts:
    correct = _floats(table, "correct")
    has_reference = pc.is_valid(table["expected"]).to_numpy()
    judges_without_reference = bool((~np.isnan(correct) & ~has_reference).any())
    return Verdicts(
        item=table["item_index"].to_numpy(),
        correct=correct,
        score=_floats(table, "score"),
        is_scorable=has_reference | judges_without_reference,
    )


def _floats(table: pa.Table, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = table[name].cast(pa.float64()).to_numpy()  # null becomes NaN
    return values


def _objects(table: pa.Table, name: str) -> NDArray[np.object_]:
    return np.array(table[name].to_pylist(), dtype=object)


def _is_answer(table: pa.Table) -> NDArray[np.bool_]:
    return np.not_equal(_objects(table, "status"), Status.FAILED).astype(np.bool_)


def _check_keys(table: pa.Table, *, expected_items: int, repeats: int) -> None:
    item, repeat = table["item_index"].to_numpy(), table["repeat"].to_numpy()
    if ((item < 0) | (item >= expected_items) | (repeat < 0) | (repeat >= repeats)).any():
        raise StateError(f"results outside the run of {expected_items} items and {repeats} repeats; run verify")
    doubled = len(item) - len(np.unique(item.astype(np.int64) * repeats + repeat))
    if doubled:
        raise StateError(f"{doubled} results occur more than once; select_newest must come first, else run verify")


def _count(status: NDArray[np.object_], *, expected: int | None) -> Items:
    counts = {one: int((status == one).sum()) for one in Status}
    failed = counts[Status.FAILED]
    return Items(
        expected=expected,
        ok=len(status) - failed,
        failed=failed,
        missing=None if expected is None else expected - len(status),
        truncated=counts[Status.TRUNCATED],
        filtered=counts[Status.FILTERED],
        refused=counts[Status.REFUSED],
    )


def _by_category(
    table: pa.Table,
    verdicts: Verdicts,
    *,
    repeats: int,
    expected: Mapping[str, int] | None,
    is_complete: bool,
) -> tuple[Category, ...]:
    """Return one entry a category, by name; none where the dataset has no categories."""
    category, status = _objects(table, "category"), _objects(table, "status")
    if expected is None and is_complete:
        expected = {name: round((category == name).sum() / repeats) for name in set(category)}
    names = sorted(set(category) | set(expected or {}))
    if names in ([], [""]):
        return ()
    found = []
    for name in names:
        mask = category == name
        owed = None if expected is None else expected.get(name, 0) * repeats
        if owed is not None and mask.sum() > owed:
            raise StateError(f"category {name!r} has {mask.sum()} results, but only {owed} are expected; run verify")
        part = measure(verdicts.where(mask), expected=owed, repeats=repeats)
        found.append(Category(name, _count(status[mask], expected=owed), part))
    return tuple(found)


def _failures(table: pa.Table) -> dict[str, int]:
    """Count failed results by kind, the most frequent first."""
    kinds = _objects(table, "error_kind")[~_is_answer(table)]
    names, counts = np.unique([kind or "unknown" for kind in kinds], return_counts=True)
    pairs = zip(names.tolist(), counts.tolist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def _quantiles(seconds: NDArray[np.float64]) -> Quantiles | None:
    seen = seconds[~np.isnan(seconds)]
    if len(seen) == 0:
        return None
    p50, p90, p99 = np.quantile(seen, (0.5, 0.9, 0.99)).tolist()
    return Quantiles(count=len(seen), p50=p50, p90=p90, p99=p99)


def _tokens(answers: pa.Table) -> Tokens:
    sums = {name: pc.sum(answers[f"{name}_tokens"]).as_py() or 0 for name in ("prompt", "output", "cached")}
    return Tokens(**sums, uncounted=int((_objects(answers, "usage_source") != "server").sum()))


def _coverage(items: Items, accuracy: Accuracy | None) -> float:
    have, owed = _progress(items, accuracy)
    return have / owed if owed else 1.0


def _progress(items: Items, accuracy: Accuracy | None) -> tuple[int, int]:
    """Return how many results are what the headline needs (scored, else answered), and how many should be."""
    have, owed = (items.ok, items.expected) if accuracy is None else (accuracy.scored, accuracy.expected)
    assert owed is not None  # of the whole run it is always known
    return have, owed


def _headline(items: Items, accuracy: Accuracy | None, *, reached: float, threshold: float) -> str:
    have, owed = _progress(items, accuracy)
    if reached < threshold:
        share = math.floor(reached * 1000) / 10  # rounded up it could show the threshold itself
        word = "answered" if accuracy is None else "scored"
        text = f"INCONCLUSIVE: {have:,} of {owed:,} {word} ({share:.1f} %), below the {threshold * 100:g} % asked for"
        return text if accuracy is None else f"{text}; accuracy from {accuracy.worst:.3f} to {accuracy.best:.3f}"
    if accuracy is None:
        return f"{have:,} of {owed:,} answered, not scored"
    shown = f"{accuracy.accuracy:.3f} [{accuracy.low:.3f}, {accuracy.high:.3f}]"
    return f"accuracy {shown} over {have:,} answered"


def format_table(summary: Summary) -> str:
    """Return one line a category and one for all; "-" stands for what is not known, never for zero.

    n: results expected (items times repeats), or seen where nobody said how many there should be.
    """
    every = Category("all", summary.items, summary.accuracy)
    rows = [TABLE_HEADER, *(_cells(c) for c in summary.categories), _cells(every)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(TABLE_HEADER))]
    return "\n".join(_line(row, widths) for row in rows)


def _cells(category: Category) -> tuple[str, ...]:
    items = category.items
    missing = "-" if items.missing is None else f"{items.missing:,}"
    return (
        _printable(category.name),
        f"{_total(items):,}",
        f"{items.ok:,}",
        f"{items.failed:,}",
        missing,
        *_verdict(category.accuracy),
    )


def _total(items: Items) -> int:
    return items.ok + items.failed if items.expected is None else items.expected


def _verdict(accuracy: Accuracy | None) -> tuple[str, str]:
    if accuracy is None:
        return "-", "-"
    return f"{accuracy.accuracy:.3f}", f"[{accuracy.low:.3f}, {accuracy.high:.3f}]"


def _printable(name: str) -> str:
    """Return a name that cannot move the cursor or break the table: it comes from the dataset."""
    plain = "".join(c if c.isprintable() else "?" for c in name) or "(none)"
    return plain if len(plain) <= MAX_NAME_CHARS else plain[: MAX_NAME_CHARS - 1] + "…"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    padded = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
    return "  ".join(padded).rstrip()
