"""Where earlier runs settled: what is kept, what is read, and when a run begins cold all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store.store_rows import Relay, SmallRun

from evalpipe.config import EndpointConfig, load_config
from evalpipe.control.core import Tick
from evalpipe.control.warm import Settled, WarmStart
from evalpipe.endpoint.preflight import Preflight
from evalpipe.runtime.controller import Predecessor, build_core
from evalpipe.runtime.recorder import Recorder
from evalpipe.runtime.session import Session
from evalpipe.runtime.warmth import FOLDER, remember, settled_before
from evalpipe.store.local import LocalStore

ENDPOINT = Preflight("http://127.0.0.1:9/v1", "m", ("m",), True, "none", (), EndpointConfig())


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    return SmallRun(Relay(tmp_path / "runs/one"))


@pytest.fixture
def shelf(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "runs")


def session(small: SmallRun, *, endpoint: Preflight = ENDPOINT, **settings: Any) -> Session:
    config = load_config(flags={name.replace("__", "."): value for name, value in settings.items()}, environ={})
    dataset: Any = None  # nothing here looks at items
    return Session(config, "one", small.store, None, dataset, small.spec, small.log.state, None, endpoint, None)


def tick(at: float, in_flight: int) -> Tick:
    return Tick(at, in_flight, in_flight, 0, 2, 0, 100.0, 5.0, 0, None, None, None, "", 1, {})


def record(small: SmallRun, in_flight: int, *, ticks: int = 30) -> None:
    recorder = Recorder(small.store, small.log)
    recorder.add([tick(number / 2, in_flight) for number in range(ticks)])
    recorder.flush()


def test_the_next_run_at_the_same_endpoint_and_model_begins_there(small: SmallRun, shelf: LocalStore):
    """And one at another endpoint, or of another model, begins cold."""
    this = session(small)

    remember(this, 64.0, shelf)

    assert settled_before(this, small.log.state, shelf) == Settled(64.0, "warm_start")
    for other in (replace(ENDPOINT, base_url="http://127.0.0.1:10/v1"), replace(ENDPOINT, model="n")):
        assert settled_before(session(small, endpoint=other), small.log.state, shelf) is None


def test_a_simulated_server_is_known_by_its_settings(small: SmallRun, shelf: LocalStore):
    """Not by its port, which is another one each time; with other options it is another server."""
    settings = {"endpoint__base_url": "sim://vllm", "sim__options": {"slots": 8}}
    remember(session(small, **settings), 8.0, shelf)
    moved = replace(ENDPOINT, base_url="http://127.0.0.1:10/v1")

    same = session(small, endpoint=moved, **settings)
    other = session(small, **(settings | {"sim__options": {"slots": 9}}))

    assert settled_before(same, small.log.state, shelf) == Settled(8.0)
    assert settled_before(other, small.log.state, shelf) is None


def test_a_resumed_run_goes_by_its_own_rows(small: SmallRun, shelf: LocalStore):
    """They are of this server and this load; the newest file counts, and what was stuck does not."""
    record(small, 20, ticks=600)
    record(small, 50, ticks=700)
    remember(session(small), 64.0, shelf)

    assert settled_before(session(small), small.log.state, shelf) == Settled(48.0, "resume")


def test_a_run_that_ended_too_soon_says_nothing_of_itself(small: SmallRun, shelf: LocalStore):
    """Below ten seconds of rows the level beside the runs is taken."""
    record(small, 50, ticks=19)
    remember(session(small), 64.0, shelf)

    assert settled_before(session(small), small.log.state, shelf) == Settled(64.0)


def test_it_is_kept_within_the_bounds(small: SmallRun, shelf: LocalStore):
    """An earlier run was allowed more than this one is."""
    remember(session(small), 300.0, shelf)

    assert settled_before(session(small, control__max_limit=40), small.log.state, shelf) == Settled(40.0)


@pytest.mark.parametrize(
    "control",
    [
        {"control__warm_start": False},
        {"control__start": 16},
        {"control__law": "fixed"},
        {"control__law": "gradient-published"},
    ],
)
def test_some_runs_begin_cold(small: SmallRun, shelf: LocalStore, control: dict[str, Any]):
    """Switched off, told where to begin, or with a law to the letter: nothing is read, and nothing is kept."""
    remember(session(small), 64.0, shelf)
    cold = session(small, **control)
    remember(cold, 7.0, shelf)

    assert settled_before(cold, small.log.state, shelf) is None
    assert settled_before(session(small), small.log.state, shelf) == Settled(64.0)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"level": "many", "crc": 0}'])
def test_a_damaged_hint_is_no_hint(small: SmallRun, shelf: LocalStore, body: bytes):
    """The run begins cold and says why in its log; the next one that ends writes the file anew."""
    remember(session(small), 64.0, shelf)
    (key,) = shelf.list(FOLDER)
    shelf.put(key, body)

    damaged = settled_before(session(small), small.log.state, shelf)
    remember(session(small), 65.0, shelf)

    assert damaged is None
    assert settled_before(session(small), small.log.state, shelf) == Settled(65.0)


def test_storage_that_fails_costs_the_hint_alone(small: SmallRun, tmp_path: Path):
    """A shelf that cannot be read or written ends no run."""
    (tmp_path / "file").write_text("not a folder")
    broken = LocalStore(tmp_path / "file")

    remember(session(small), 64.0, broken)

    assert settled_before(session(small), small.log.state, broken) is None


def test_a_controller_is_led_there_and_its_successor_is_not():
    """One that goes on from a predecessor's law has its limit already."""
    control = load_config(environ={}).control
    settled = Settled(100.0)

    first = build_core(control, Predecessor(settled=settled))
    second = build_core(control, Predecessor(state=first.law.state, settled=settled))

    assert isinstance(first.law, WarmStart)
    assert not isinstance(second.law, WarmStart)
    assert second.limit == first.limit
