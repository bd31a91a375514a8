"""`sim replay` on a stored run: what happened beside what other laws make of it, and how far to trust that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report.stored import answer, attempt, lost, store_run, tick

from evalpipe.config import load_config
from evalpipe.errors import ConfigError
from evalpipe.report.replay import HAPPENED, Replay, format_replay, replay_run
from evalpipe.sim.replay import Replayed
from evalpipe.store.objects import ObjectStore

CONTROL = load_config(environ={}).control


@pytest.fixture
def run(tmp_path: Path) -> ObjectStore:
    """Eighty answers at four in flight for 22 s, one lost item, three rejections, ten attempts that timed out."""
    results = [answer(i, sent_at=1e9 + i // 4 * 1.1) for i in range(80)] + [lost(80, "too_long")]
    attempts = [attempt(i) for i in range(80)]
    attempts += [attempt(i, "overloaded") for i in range(3)] + [attempt(i, "timeout") for i in range(10)]
    return store_run(
        tmp_path / "run", results=results, attempts=attempts, ticks=[tick(i / 2, 4.0) for i in range(1, 45)]
    ).store


def test_what_happened_comes_first(run: ObjectStore):
    """Time and in flight of the recorder, latencies of the answers, rejections of the attempts; then the run's law."""
    told = replay_run(run, CONTROL, laws=["aimd"])

    first, own, other = told.rows
    assert first == Replayed(HAPPENED, 22.0, 3, 1.1, 1.1, 0.1, 4.0)
    assert (own.label, other.label) == ("regress, as it ran", "aimd")
    assert "80 answers of the run, in virtual time; server fitted to them: step " in told.server
    assert "no queue was seen: nothing is known of it above 4 at once" in told.server


def test_a_profile_is_taken_where_one_is_given(run: ObjectStore):
    """And said; the usual rivals run where no law is named."""
    told = replay_run(run, CONTROL, server="vllm")

    assert told.server.endswith("server: profile vllm, as asked")
    assert [row.label for row in told.rows[2:]] == ["gradient", "progress", "aimd"]


def test_the_law_runs_as_it_was_set(run: ObjectStore):
    """With its own bounds: a fixed limit of 4 stays at 4."""
    control = load_config(flags={"control.law": "fixed", "control.start": 4}, environ={}).control

    own = replay_run(run, control, laws=["aimd"]).rows[1]

    assert own.label == "fixed, as it ran"
    assert own.mean_in_flight == pytest.approx(4.0, abs=0.1)
    assert own.seconds == pytest.approx(22.0, rel=0.05)


def test_without_rows_of_control_the_answers_tell_the_time(tmp_path: Path):
    """A run killed before its first row: from the first send to the last answer, in flight by Little's law."""
    store = store_run(tmp_path / "run", results=[answer(i, sent_at=1e9 + i) for i in range(60)]).store

    happened = replay_run(store, CONTROL, laws=["aimd"]).rows[0]

    assert happened.seconds == pytest.approx(60.1)
    assert happened.mean_in_flight == pytest.approx(60 * 1.1 / 60.1)


def test_a_run_without_answers_cannot_be_replayed(tmp_path: Path):
    """It says what is missing."""
    store = store_run(tmp_path / "run", results=[lost(0, "timeout")]).store

    with pytest.raises(ConfigError, match="no answer with token counts"):
        replay_run(store, CONTROL)


def row(label: str, seconds: float, **more: Any) -> Replayed:
    return Replayed(label, seconds, 1_234, 1.0, 2.0, float("nan"), 4.0, **more)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (95.0, "The run's own law comes within 5% of what happened, so differences between laws beyond that mean"),
        (150.0, "The run's own law comes within 50% of what happened, so trust the order only."),
    ],
)
def test_the_table_says_how_far_to_trust_it(own: float, said: str):
    """Measured by the law that really ran."""
    text = format_replay(Replay("a server", [row(HAPPENED, 100.0), row("gradient", own), row("aimd", 200.0)]))

    assert said in text
    assert max(map(len, text.splitlines())) <= 110
    assert "aimd                           200.0 s      2.00     1,234    1.00 s    2.00 s         -       4.0" in text
