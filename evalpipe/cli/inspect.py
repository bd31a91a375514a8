"""Verbs that only read a stored run: status, verify, show, and score, which scores its answers again."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalpipe.cli.run import AsJson, Debug, Settings
from evalpipe.errors import ConfigError, EvalPipeError, StateError

if TYPE_CHECKING:
    from evalpipe.store.objects import ObjectStore
    from evalpipe.store.verify import Report

RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run, e.g. runs/latest.")]
FAILED_ITEMS, INCOMPLETE, DAMAGED = 3, 75, 78
ANSWER_COLUMNS = ("item_id", "repeat", "status", "correct", "extracted", "expected", "output_tokens", "rtt_s")
FAILED_COLUMNS = ("item_id", "repeat", "error_kind", "error_code", "attempts", "error_message")


def status(run: RunFolder, as_json: AsJson = False, debug: Debug = False) -> None:
    """Say how far a run is, whether a driver works on it, and how to go on."""
    from evalpipe.api import open_run
    from evalpipe.store.liveness import may_live, read_lease
    from evalpipe.store.log import read_state

    stored = open_run(run)
    state, spec = read_state(stored.store), stored.spec
    lease = read_lease(stored.store, state.epoch)
    expected, counts = spec.items * spec.repeats, state.counts
    missing = expected - counts.ok - counts.failed
    body: dict[str, Any] = {
        "run": stored.name,
        "items": {"expected": expected, "ok": counts.ok, "failed": counts.failed, "missing": missing},
        "epoch": state.epoch,
        "log_version": state.version,
        "driver": lease.describe() if lease is not None and may_live(lease) else None,
    }
    if as_json:
        print(json.dumps(body, indent=2))
        return
    print(f"{stored.name}: {counts.ok} answered, {counts.failed} failed, {missing} missing of {expected}")
    print(f"log at entry {state.version}, {state.epoch} driver(s) so far, {len(state.files)} live files")
    if body["driver"]:
        print(f"a driver may be working on it: {body['driver']}")
    elif missing:
        print(f"go on with: evalpipe resume {shlex.quote(stored.url)}")


def verify(run: RunFolder, as_json: AsJson = False, debug: Debug = False) -> None:
    """Read every byte of a run again: complete, nothing twice, nothing damaged.

    Exit 0, 3 more failed items than run.fail_on_error allows, 75 incomplete, 78 damaged.
    """
    from evalpipe.store.verify import verify as check

    store = _store_of(run)
    report = check(store)
    if as_json:
        print(json.dumps({**asdict(report), "is_sound": report.is_sound, "is_complete": report.is_complete}, indent=2))
    else:
        _print_report(report, url=store.url)
    raise typer.Exit(_verdict(report, allowed=_fail_on_error(store)))


def _store_of(run: str) -> ObjectStore:
    """Open the storage of a run, also of one whose spec.json was lost. Raises ConfigError where there never was one."""
    from evalpipe.api import open_run
    from evalpipe.store.open import open_store

    try:
        return open_run(run).store
    except (ConfigError, StateError):
        store = open_store(run if "://" in run else str(Path(run).resolve()))
        if not store.list("_log/"):
            raise
        return store


def _print_report(report: Report, *, url: str) -> None:
    print(f"expected {report.expected}: {report.ok} answered, {report.failed} failed, {report.missing} missing")
    print(f"rows that came twice and do not count: {report.duplicate}; files read: {report.files_checked}")
    for path in report.orphans:
        print(f"not committed yet: {path} (the next resume takes it in)")
    for path in report.leftovers:
        print(f"left over: {path} (a driver died while it merged segments; the next resume removes it)")
    for note in report.notes:
        print(f"note: {note}")
    for problem in report.problems:
        print(f"problem: {problem}", file=sys.stderr)
    if not report.is_sound:
        print(f"NOT SOUND: {len(report.problems)} problem(s), named on stderr; the counts are of what could be read")
    elif not report.is_complete:
        print(f"sound, not complete; go on with: evalpipe resume {shlex.quote(url)}")
    else:
        print("sound and complete")


def _fail_on_error(store: ObjectStore) -> float:
    """Return the share of items that may fail, as the run was last told; 0 where that cannot be read."""
    from evalpipe.api import Run

    try:
        return Run(store).config.run.fail_on_error
    except EvalPipeError:
        return 0.0


def _verdict(report: Report, *, allowed: float) -> int:
    if not report.is_sound:
        return DAMAGED
    if not report.is_complete:
        return INCOMPLETE
    return FAILED_ITEMS if report.failed > allowed * report.expected else 0


def show(
    run: RunFolder,
    item: Annotated[str | None, typer.Option("--item", help="One item, whole.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only items without an answer.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only answers scored wrong.")] = False,
    count: Annotated[int, typer.Option("-n", min=1, help="So many rows.")] = 20,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the scores of a run and its rows, or one item whole."""
    from evalpipe.api import open_run, summarise_run
    from evalpipe.report.ending import ending
    from evalpipe.report.rows import format_item, format_rows, select

    if failed and wrong:
        raise ConfigError("--failed and --wrong exclude each other: a failed item has no verdict")
    stored = open_run(run)
    table = select(stored.table(), item=item, failed=failed, wrong=wrong)
    if as_json:
        for row in table.slice(0, count).to_pylist():
            print(json.dumps(row, default=str))
        return
    if item is not None:
        print("\n\n".join(format_item(row) for row in table.to_pylist()))
        return
    if not (failed or wrong):
        summary = summarise_run(stored.store, coverage=stored.config.run.coverage)
        print(ending({"url": stored.url, "why": "", "exit_code": 0, **summary.to_dict()}, summary))
        print()
    columns = FAILED_COLUMNS if failed else ANSWER_COLUMNS
    print(format_rows(table.slice(0, count), columns, total=table.num_rows))


def score(run: RunFolder, settings: Settings = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Score the stored answers again, e.g. with --set scorer.name=numeric; nothing is sent, parts/ stay as they are."""
    from evalpipe.api import rescore
    from evalpipe.cli.run import stored_config
    from evalpipe.report.summary import format_table

    other = [text for text in settings or () if not text.startswith("scorer.")]
    if other:
        raise ConfigError(f"score changes only scorer.* settings, got {other[0]}")
    summary, url = rescore(run, stored_config(run, settings=settings).scorer)
    if as_json:
        print(json.dumps({**summary.to_dict(), "url": url}, indent=2))
        return
    print(format_table(summary))
    print(f"\n{summary.headline}\nscores: {url}")
