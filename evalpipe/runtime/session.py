"""Everything that must be right before the first request: config, data, folder, endpoint. Cheap checks first.

Opening a session gives all of it or raises with one clear line, and leaves nothing half written. Ray takes six
seconds to start, so it and the simulated server start in threads meanwhile, as soon as they are known to be needed.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from evalpipe.config import Config, ControlConfig, EndpointConfig, SamplingConfig
from evalpipe.control.build import RECIPES, build_law, resolve_law
from evalpipe.data import Dataset, open_dataset
from evalpipe.data.files import find_files
from evalpipe.endpoint.preflight import Preflight, preflight
from evalpipe.errors import ConfigError
from evalpipe.prompt import Prompter
from evalpipe.records import Key
from evalpipe.runtime import agenda
from evalpipe.runtime.agenda import Agenda
from evalpipe.runtime.jobenv import refuse_keys
from evalpipe.runtime.place import check_writable, exists, find_run, local_folder, output_of
from evalpipe.runtime.silence import await_silence
from evalpipe.scoring.scorers import build_scorer
from evalpipe.sim.misbehave import FaultPlan
from evalpipe.sim.profiles import profile
from evalpipe.sim.server import SimServer
from evalpipe.store.entry import Counts
from evalpipe.store.failed import failed_keys
from evalpipe.store.log import read_state
from evalpipe.store.objects import NotFound, ObjectStore, probe
from evalpipe.store.open import open_store
from evalpipe.store.readable import to_yaml
from evalpipe.store.spec import Spec, read_spec, write_spec
from evalpipe.store.state import LogState

SIM_SCHEME = "sim://"
SIM_MODEL = "sim"
LEDGER = "sim-ledger.jsonl"
VERSIONS_OF = ("evalpipe", "ray", "openai", "pyarrow", "datasets", "numpy")


@dataclass(frozen=True, slots=True)
class Session:
    """A run that may begin. config: with everything resolved. state: of the log, as found.

    retry: keys of failed items to try again, and nothing else; None: whatever has no result. folder: where the run
    lies on this machine, None in a bucket. endpoint, ray: None where nothing is left to send; ray.result() waits until
    Ray is up.
    """

    config: Config
    name: str
    store: ObjectStore
    folder: Path | None
    dataset: Dataset
    spec: Spec
    state: LogState
    retry: Sequence[Key] | None
    endpoint: Preflight | None
    ray: Future[bool] | None

    @property
    def expected(self) -> int:
        return self.spec.items * self.spec.repeats

    @property
    def owed(self) -> int:
        """Results that this driver is to get, as the log was found."""
        return self.expected - _settled(self.state, self.spec) if self.retry is None else len(self.retry)

    @property
    def is_complete(self) -> bool:
        return self.owed == 0

    def agenda(self, state: LogState) -> Agenda:
        """Return what is left to do. state: of the log, dead workers' files taken in."""
        if self.retry is None:
            return agenda.owed(state, order=self.dataset.order, repeats=self.spec.repeats)
        return agenda.again([key for key in self.retry if not state.is_done(key)], order=self.dataset.order)

    def scope(self, state: LogState, todo: Agenda) -> tuple[int, Counts]:
        """Return how many results progress is shown of, and what to leave out of the log's counts for it."""
        if self.retry is not None:
            return todo.count, state.counts
        ok, failed = agenda.visible_counts(state, items=self.spec.items, repeats=self.spec.repeats)
        counts = state.counts
        return self.expected, Counts(counts.ok - ok, counts.failed - failed, 0)


@contextmanager
def open_session(
    config: Config, *, retry_failed: str | None = None, say: Callable[[str], None] = lambda line: None
) -> Iterator[Session]:
    """Resolve a config and open what it names; close it all at the end. say: told what is being waited for.

    retry_failed: a kind of failure, or "all": do only the items that failed so, again.

    Raises ConfigError or DataError (exit 2), RunFatal for an endpoint that cannot serve (77, 78), StateError for stored
    data that does not fit (78), Fenced when another driver works on the run (75).
    """
    check_settings(config)
    with ExitStack() as stack:
        find_files_of(config)
        looked = None
        if config.endpoint.model is None:
            config, looked = _resolve_model(config)
        name, store = find_run(config)
        state = read_state(store)
        retry = failed_keys(store, state, kind=retry_failed) if retry_failed is not None and exists(store) else None
        check_writable(local_folder(store.url))
        dataset = stack.enter_context(open_dataset(config.dataset))
        Prompter(config.prompt).validate(dataset.columns)
        spec = _spec(config, dataset)
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
        starting = None
        if retry if retry is not None else not _looks_complete(store, state):
            if not config.run.takeover:
                await_silence(store, state.epoch, say=say)
            if not config.is_simulated:  # a wrong key or model is told in two seconds, not after Ray has started
                looked = looked or look(config.endpoint, config.sampling)
            starting = _Starting(config, local_folder(store.url), stack)
            looked = looked or starting.look()
            config = config.model_copy(update={"endpoint": _as_looked(config.endpoint, looked)})
        probe(store)
        write_spec(store, spec)
        store.put("config.yaml", to_yaml(config.to_yaml()))
        ray = starting.ray if starting is not None else None
        yield Session(config, name, store, local_folder(store.url), dataset, spec, state, retry, looked, ray)


class _Starting:
    """What takes seconds to start, started: Ray, and the simulated server where one is meant."""

    def __init__(self, config: Config, folder: Path | None, stack: ExitStack) -> None:
        self._config = config
        self._folder = folder if config.is_simulated else None
        pool = stack.enter_context(ThreadPoolExecutor(2, thread_name_prefix="start"))
        self._sim = pool.submit(_start_sim, config, folder) if config.is_simulated else None
        self.ray: Future[bool] = pool.submit(_start_ray, config.run.ray_address)
        stack.callback(self._stop)

    def look(self) -> Preflight:
        """Look at the simulated server when it is up; does not wait for Ray."""
        assert self._sim is not None, "a real endpoint was looked at before"
        endpoint = self._config.endpoint.model_copy(update={"base_url": self._sim.result().base_url})
        return look(endpoint, self._config.sampling)

    def _stop(self) -> None:
        """End what was started, once it is up; what failed to start has said so."""
        if self._sim is not None and self._sim.exception() is None:
            self._sim.result().stop()
        if self._folder is not None and not (self._folder / "spec.json").exists():
            (self._folder / LEDGER).unlink(missing_ok=True)  # nothing half written: the run never began
            with suppress(OSError):
                self._folder.rmdir()
        if self.ray.exception() is None and self.ray.result():
            from evalpipe.runtime import fleet

            fleet.disconnect()


def look(endpoint: EndpointConfig, sampling: SamplingConfig) -> Preflight:
    """Run the preflight in a thread of its own: the caller may have a running event loop (a notebook)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(preflight(endpoint, sampling))).result()


def _start_ray(address: str | None) -> bool:
    from evalpipe.runtime import fleet  # ray takes a second to import

    return fleet.connect(address)


def find_files_of(config: Config) -> None:
    """Raise DataError for a dataset that is not there, before anything slow starts."""
    if not config.dataset.path.startswith("hf://"):
        find_files(config.dataset.path)


def _looks_complete(store: ObjectStore, state: LogState) -> bool:
    """Say whether nothing is left to do, from what is stored; the dataset is compared with it later."""
    try:
        spec = read_spec(store)
    except NotFound:
        return False
    return _settled(state, spec) >= spec.items * spec.repeats


def _settled(state: LogState, spec: Spec) -> int:
    return sum(agenda.visible_counts(state, items=spec.items, repeats=spec.repeats))


def check_settings(config: Config) -> None:
    """Build what is built from settings alone, to meet every mistake in them before any work."""
    refuse_keys(os.environ, api_key_env=config.endpoint.api_key_env)
    control = config.control
    build_law(
        control.law, start=control.start, min_limit=control.min_limit, max_limit=control.max_limit, **control.options
    )
    for shadow in control.shadows:
        resolve_law(shadow)
    build_scorer(config.scorer)
    if config.is_simulated:
        profile(sim_profile(config), **config.sim.options)
        FaultPlan(config.sim.faults, seed=config.sim.seed)
    output_of(config)


def sim_profile(config: Config) -> str:
    return (config.endpoint.base_url or "").removeprefix(SIM_SCHEME)


def max_limit(control: ControlConfig) -> int:
    """Return the largest limit that the law may set."""
    recipe = RECIPES[resolve_law(control.law)[0]]
    bounds = recipe.bounds(start=control.start, min_limit=control.min_limit, max_limit=control.max_limit)
    return int(bounds.start if resolve_law(control.law)[0] == "fixed" else bounds.max_limit)


def _spec(config: Config, dataset: Dataset) -> Spec:
    versions = {name: version(name) for name in VERSIONS_OF} | {"python": platform.python_version()}
    return Spec(config.semantic(), dataset.fingerprint, len(dataset), config.run.repeats, versions=versions)


def _resolve_model(config: Config) -> tuple[Config, Preflight | None]:
    """Find the model's name where none is given: it is part of what a run is about."""
    if config.is_simulated:
        return _with_model(config, SIM_MODEL), None
    if config.run.name is not None:
        store = open_store(f"{output_of(config)}/{config.run.name}")
        if exists(store):  # a stored run knows its model: no need to ask a server that may be gone
            return _with_model(config, str(read_spec(store).semantic["model"])), None
    looked = look(config.endpoint, config.sampling)
    return _with_model(config, looked.model), looked


def _with_model(config: Config, model: str) -> Config:
    return config.model_copy(update={"endpoint": config.endpoint.model_copy(update={"model": model})})


def _as_looked(endpoint: EndpointConfig, looked: Preflight) -> EndpointConfig:
    """Ask this server only for what it takes and gives."""
    found = looked.config
    return endpoint.model_copy(update={"include_usage": found.include_usage, "max_tokens_name": found.max_tokens_name})


def _start_sim(config: Config, folder: Path | None) -> SimServer:
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run's folder {folder}: {error.strerror}") from None
    return SimServer(
        sim_profile(config),
        options=config.sim.options,
        dataset=None if config.dataset.id_column or config.dataset.expected_column else config.dataset.path,
        ledger=folder / LEDGER if folder is not None else None,
        accuracy=config.sim.accuracy,
        seed=config.sim.seed,
        faults=config.sim.faults,
    )
