"""Whole runs, held against the server's own ledger."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from witness import check_run

from evalpipe.control.build import RECIPES
from evalpipe.sim.ledger import read_ledger
from evalpipe.store.log import read_state
from evalpipe.store.rows import read_all
from evalpipe.store.schema import RESULT_SCHEMA

pytestmark = pytest.mark.ray

SHOWN_LAWS = ("regress", "progress")  # the others in the long suite

SEVEN_FAULTS = dict.fromkeys(
    ("rate_limited", "overloaded", "cut_stream", "reset", "html_200", "error_in_200", "empty_choices"), 0.1 / 7
)


def ledger_lines(run) -> int:
    return len((Path(run.url) / "sim-ledger.jsonl").read_text().splitlines())


def test_every_item_once_and_judged_as_the_server_did(run_it):
    """300 items through two workers: one row each, the server's text and verdict, no send above the limit."""
    run = run_it(limit=300, run__workers=2)

    found = check_run(run.url)
    body = run.summary
    assert (run.exit_code, found.rows, found.answered, found.paid_twice) == (0, 300, 300, 0)
    assert found.is_clean
    assert body["items"] == body["items"] | {"expected": 300, "ok": 300, "failed": 0, "missing": 0}
    assert body["score"]["interval"]["low"] <= 0.7 <= body["score"]["interval"]["high"]
    assert body["bound_by"] in {"server", "client CPU", "limit", "data"}
    assert (Path(run.url).parent / "latest").resolve() == Path(run.url).resolve()


def test_a_complete_run_sends_nothing_and_says_the_same(run_it):
    """The same settings again: no request, the same numbers, exit 0; parts/ and config.yaml are what users read."""
    first = run_it(limit=40, run__store_prompts=False)
    sent, summary = ledger_lines(first), first.summary

    again = run_it(limit=40, run__store_prompts=False)

    assert ledger_lines(again) == sent
    assert (again.exit_code, again.summary["score"]) == (0, summary["score"])
    table = pq.read_table(list((Path(again.url) / "parts").glob("*.parquet")), page_checksum_verification=True)
    assert table.schema.names == RESULT_SCHEMA.names
    assert sorted(table["item_index"].to_pylist()) == list(range(40))
    assert table["prompt"].null_count == 40
    assert again.results()[0]["item_index"] == 0
    assert again.config.semantic() == dict(again.spec.semantic)


def test_seven_ways_to_fail_cost_no_item_and_no_score(run_it):
    """429, 503, cut, reset, HTML, error inside a 200, empty choices, 10 % together: complete, once, 0 failed."""
    run = run_it(limit=200, sim__faults=SEVEN_FAULTS, control__law="fixed", control__start=24)

    found = check_run(run.url)
    faulty = [arrival for arrival in read_ledger(Path(run.url) / "sim-ledger.jsonl").arrivals if arrival.fault]
    assert {arrival.fault for arrival in faulty} == set(SEVEN_FAULTS)
    assert (run.exit_code, found.rows, found.answered) == (0, 200, 200)
    assert found.is_clean
    assert run.summary["rate"]["retries"] >= len(faulty)


def test_a_refused_item_is_a_typed_failure_and_may_be_tried_again(run_it, cli):
    """What the server calls too long is stored as failed, exit 3; `--failed` sends just those, and answers win."""
    run = run_it(limit=60, sim__faults={"too_long": 0.2})

    failed = [row for row in run.table().to_pylist() if row["status"] == "failed"]
    assert failed
    assert run.exit_code == 3
    assert {(row["error_kind"], row["response"], row["score"]) for row in failed} == {("too_long", None, None)}
    assert run.summary["items"]["failed"] == len(failed)
    assert run.summary["score"]["scored"] == 60 - len(failed)

    said = cli("resume", run.url, "--failed", "too_long", "--set", "sim.faults={}")

    generations = [row["generation"] for row in run.table().to_pylist()]
    found = check_run(run.url)
    assert (said.code, found.answered, found.is_clean) == (0, 60, True)
    assert f"try again {len(failed)} items" in said.err + said.out
    assert (generations.count(1), generations.count(0)) == (len(failed), 60 - len(failed))
    assert read_all(run.store, read_state(run.store), every_generation=True).num_rows == 60 + len(failed)


@pytest.mark.parametrize(("limit", "items"), [(24, 120), pytest.param(2, 24, marks=pytest.mark.slow)])
def test_eight_workers_share_one_limit(run_it, limit: int, items: int):
    """The server, counting for itself, never finds the limit taken (I4), and it is used to the full."""
    run = run_it(limit=items, run__workers=8, control__law="fixed", control__start=limit)

    found = check_run(run.url)
    assert (found.answered, found.over_limit) == (items, [])
    assert min(limit, 20) <= found.high_water <= limit


@pytest.mark.parametrize(
    "law",
    [
        *SHOWN_LAWS,
        *(pytest.param(law, marks=pytest.mark.chaos) for law in RECIPES if law not in (*SHOWN_LAWS, "fixed")),
    ],
)
def test_each_law_completes_a_run(run_it, law: str):
    """Whatever steers one worker, every item is answered, and the recorder shows limit and gradient over time."""
    run = run_it(limit=48, control__law=law)

    found = check_run(run.url)
    ticks = pq.read_table(list((Path(run.url) / "control").glob("*.parquet")))
    assert (found.answered, found.is_clean) == (48, True)
    assert ticks.num_rows >= 2
    assert any(gradient is not None for gradient in ticks["gradient"].to_pylist())
