"""report.html: everything of a run on one page, from nothing loaded, and nothing foreign obeyed."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.stored import answer, attempt, lost, moved, store_run, tick

from evalpipe.api import summarise_run
from evalpipe.control.law import REASONS
from evalpipe.report.flight import Move
from evalpipe.report.page import KEY, render, write_page
from evalpipe.report.source import read_attempts, read_run
from evalpipe.report.timeline import MEANING, reason_rows, smooth, style_of
from evalpipe.store.log import read_state
from evalpipe.store.objects import ObjectStore

MOST_BYTES = 300_000
SPEED = {
    "rate": {"elapsed_s": 100.4, "items_per_s": 2.0, "output_tokens_per_s": 987.6, "retries": 3},
    "limit": {"law": "gradient", "final": 24.0, "mean": 20.0},
    "bound_by": "server",
}


def body(store: ObjectStore, **more: Any) -> dict[str, Any]:
    return {"why": "", "exit_code": 0, **summarise_run(store, coverage=0.95).to_dict(), **SPEED, **more}


def page(store: ObjectStore, **more: Any) -> str:
    return render(read_run(store, read_state(store), body(store, **more)))


class Reader(HTMLParser):
    """Collects text, tags, and what would be loaded; complains of a tag that is not closed in its place."""

    VOID = frozenset({"meta", "path", "wbr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "wbr":
            self.text = self.text.rstrip()
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data + " "

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


@pytest.fixture
def usual(tmp_path: Path) -> ObjectStore:
    """Ninety answers of two categories, ten failures, two drivers' worth of rows, three moves."""
    results = [answer(i, category=["logic", "sums"][i % 2], correct=i % 3 > 0) for i in range(90)]
    results += [lost(i, "too_long") for i in range(90, 100)]
    ticks = [tick(i / 2, 16 + i / 10) for i in range(1, 100)]
    changes = [moved(3.0), moved(20.0, "queue", 30, 20), moved(21.0, "queue", 20, 15)]
    attempts = [attempt(i, in_flight_at_send=i % 20 + 1) for i in range(90)]
    attempts += [attempt(i, "too_long", code="400", message="12 <b>tokens</b> too many") for i in range(90, 100)]
    attempts += [attempt(i, "rate_limited", code="429", message="slow down") for i in range(5)]
    settings = {"endpoint__base_url": "sim://vllm", "endpoint__model": "m"}
    return store_run(
        tmp_path / "my_run inconclusive", results=results, attempts=attempts, ticks=ticks, changes=changes, **settings
    ).store


def test_it_says_what_ran_and_how_it_came_out(usual: ObjectStore):
    """Result, settings, speed, what bound it, scores by category, why the limit moved, what failed."""
    words = Reader(page(usual, headline="x")).words

    for wanted in (
        "my_run inconclusive",
        "inconclusive",
        "Endpoint sim://vllm",
        "Law gradient",
        "Answered 90 of 100, 10 failed",
        "Time 1 min 40 s",
        "Output 988 tokens/s",
        "Bound by: server.",
        "logic 55 10 0.667",
        "all 100 10 0.667",
        "queue 2 requests waited at the server",
        "rate_limited 429 5 the server asks to slow down",
        "too_long 400 10 10",
    ):
        assert wanted in words, wanted


def test_a_good_run_says_its_accuracy_first(tmp_path: Path):
    """With its interval, above everything else."""
    run = store_run(tmp_path / "run", results=[answer(i) for i in range(30)])

    words = Reader(page(run.store)).words

    assert "evalpipe run run 1.000 accuracy, 95 % interval 0.886 – 1.000, 30 scored" in words


def test_a_run_that_was_cut_short_says_why(tmp_path: Path):
    """The ending stands under the result, with the exit code."""
    run = store_run(tmp_path / "run", results=[answer(0)], items=10)

    words = Reader(page(run.store, why="no answer for 1800 s", exit_code=75)).words

    assert "1 of 10 scored (10.0 %), below the 95 % asked for" in words
    assert "no answer for 1800 s (exit 75)" in words


def test_nothing_is_loaded_and_everything_is_closed(usual: ObjectStore):
    """No address anywhere, a policy that forbids loading, and one script beside the values."""
    html = page(usual)
    reader = Reader(html)

    assert reader.loads == []
    assert "default-src 'none'" in html
    assert not re.search(r"https?://|url\(|@import", html)
    assert reader.tags.count("script") == 2


def test_foreign_text_is_text(tmp_path: Path):
    """Names of categories and models, and messages of servers, cannot become tags."""
    evil = "</script><script>alert(1)</script><b>x"
    run = store_run(
        tmp_path / "run",
        results=[answer(0, category=evil)],
        attempts=[attempt(0, "bad_request", code="400", message=evil)],
        endpoint__model=evil,
    )

    reader = Reader(page(run.store))

    assert reader.tags.count("script") == 2
    assert reader.text.count("alert(1)") == 3


def test_a_large_run_fits_into_300_kb(tmp_path: Path):
    """6,000 rows, four shadows, a move each second, forty categories: the page stays small."""
    ticks = [
        tick(i / 2, 60 + 30 * math.sin(i / 40), shadows=dict.fromkeys("abcd", 50.0 + i % 90)) for i in range(6_000)
    ]
    changes = [moved(float(i), ["grow", "queue"][i % 2]) for i in range(3_000)]
    results = [answer(i, category=f"category {i % 40}") for i in range(400)]
    attempts = [attempt(i, in_flight_at_send=i % 97 + 1) for i in range(2_000)]
    run = store_run(tmp_path / "run", results=results, attempts=attempts, ticks=ticks, changes=changes)

    assert len(page(run.store).encode()) < MOST_BYTES


@pytest.mark.parametrize(("count", "said"), [(0, "nothing was recorded"), (1, "one row was recorded")])
def test_a_run_too_short_to_draw_says_so(tmp_path: Path, count: int, said: str):
    """No rows, or one: a sentence instead of a plot, and a page all the same."""
    run = store_run(tmp_path / "run", results=[answer(0)], ticks=[tick(0.5)][:count])

    words = Reader(page(run.store)).words

    assert f"{said}: the run was too short to draw" in words
    assert "fewer than 20 answers: too few to draw" in words


def test_a_quota_that_holds_back_is_drawn(tmp_path: Path, usual: ObjectStore):
    """A strip with its legend, and none where there was no quota."""
    ticks = [tick(i / 2, is_paced=5 < i < 15) for i in range(1, 30)]
    run = store_run(tmp_path / "paced", results=[answer(0)], ticks=ticks)

    assert "held back by a quota" in Reader(page(run.store)).words
    assert "held back by a quota" not in Reader(page(usual)).words


def test_the_pointer_has_a_value_for_every_line(usual: ObjectStore):
    """Each output names a list in the page's values, as long as the list of moments."""
    html = page(usual)
    found = re.search(r'id="values">(.*?)</script>', html)
    assert found is not None
    values: dict[str, list[float | None]] = json.loads(found[1])
    keys = re.findall(r'data-key="([^"]+)"', html)

    assert {"limit", "in_flight", "overdue", "gradient", "tokens_per_s", "shadow-0"} <= set(keys)
    assert {len(values[key]) for key in keys} == {len(values["at"])}


def test_it_is_written_into_the_run(usual: ObjectStore):
    """One object beside summary.json."""
    key = write_page(usual, body(usual))

    assert key == KEY
    assert usual.get(KEY).startswith(b"<!doctype html>")


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_has_a_meaning_and_a_mark(reason: str):
    """A new reason needs a sentence for people."""
    assert MEANING[reason]
    assert style_of(reason) in ("up", "down", "held")


def test_reasons_are_counted():
    """The most frequent first."""
    rows = reason_rows([Move(0.0, reason) for reason in ("queue", "grow", "grow")])

    assert [(row.reason, row.count, row.style) for row in rows] == [("grow", 2, "up"), ("queue", 1, "down")]


def test_of_many_attempts_some_files_are_read(usual: ObjectStore):
    """Above the limit every n-th file is; the page says so."""
    table, share = read_attempts(usual, read_state(usual), most=40)

    assert (table.num_rows, share) == (105, 3)


@pytest.mark.parametrize("count", [3, 79, 400])
def test_smoothing_keeps_a_level_and_its_gaps(count: int):
    """A constant stays what it is, at the ends too; few values are not smoothed at all."""
    values = np.full(count, 5.0)
    values[count // 2 : count // 2 + 1] = np.nan

    np.testing.assert_allclose(smooth(values), values)
