"""A stored run of any outcome for the tests of page and replay, without Ray or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from store.store_rows import SmallRun, Unsynced, make_result

from evalpipe.config import load_config
from evalpipe.control.core import Tick, TimedChange
from evalpipe.control.law import LimitChange
from evalpipe.records import AttemptRecord, Result
from evalpipe.runtime.recorder import Recorder
from evalpipe.store import readable
from evalpipe.store.local import LocalStore
from evalpipe.store.segments import write_segment
from evalpipe.store.spec import Spec

BEGAN = 1_790_000_000.0  # seconds since the Unix epoch


def tick(at: float, limit: float = 16.0, **changes: Any) -> Tick:
    plain = Tick(at, limit, int(limit), 2, 1, 0, 900.0, 5.0, 0, 0.01, 0.0125, 0.8, "", 1, {"aimd": limit + 4})
    return replace(plain, **changes)


def moved(at: float, reason: str = "grow", old: float = 16.0, new: float = 17.0) -> TimedChange:
    return TimedChange(at, LimitChange(old, new, reason))


def answer(index: int, **columns: Any) -> Result:
    """An answer of 100 tokens after 1.1 s, the first one after 0.1 s, sent each half second."""
    plain = make_result(index)
    timed = {"sent_at": BEGAN + index / 2, "rtt_s": 1.1, "ttft_s": 0.1, "in_flight_at_send": 8}
    counted = {"prompt_tokens": 50, "output_tokens": 100}
    return replace(plain, **(timed | counted | columns))


def lost(index: int, kind: str) -> Result:
    """An item without an answer."""
    return replace(make_result(index, failed=True), error_kind=kind)


def attempt(index: int, kind: str = "ok", **columns: Any) -> AttemptRecord:
    plain = AttemptRecord(index, 0, 0, 1, kind, "", "", BEGAN + index / 2, 1.1, 0.1, 100, None, 8, 16, 0, "w0.1")
    return replace(plain, **columns)


def store_run(
    root: Path,
    *,
    results: Sequence[Result],
    attempts: Sequence[AttemptRecord] = (),
    ticks: Sequence[Tick] = (),
    changes: Sequence[TimedChange] = (),
    items: int | None = None,
    **settings: Any,
) -> SmallRun:
    """Write a run with its settings; settings: dotted names with __ for the dot."""
    spec = Spec(semantic={"model": "m"}, fingerprint="f" * 64, items=items or len(results))
    run = SmallRun(LocalStore(root, os_calls=Unsynced()), spec=spec)
    by: dict[str, Any] = {"epoch": 1, "writer": run.log.writer, "worker": "w0.1", "spec_sha256": spec.sha256}
    files = [write_segment(run.store, results, seq=1, **by)]
    if attempts:
        files.append(write_segment(run.store, attempts, seq=2, kind="attempts", **by))
    run.log.commit(files)
    recorder = Recorder(run.store, run.log)
    recorder.add(ticks, changes)
    recorder.flush()
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    run.store.put("config.yaml", readable.to_yaml(load_config(flags=flags, environ={}).to_yaml()))
    return run
