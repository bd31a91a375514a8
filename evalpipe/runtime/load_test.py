"""A load test from settings to rows: the server looked at (or simulated), the prompts, the folder, the bench."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from evalpipe.config import Config, SamplingConfig
from evalpipe.data import open_dataset
from evalpipe.endpoint.preflight import Preflight
from evalpipe.errors import ConfigError
from evalpipe.loadtest.arrivals import ArrivalKind
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.records import Request
from evalpipe.loadtest.slo import Slo
from evalpipe.runtime.load_bench import BenchSettings, LoadBench
from evalpipe.runtime.load_crew import Crew
from evalpipe.runtime.load_files import LoadFiles
from evalpipe.runtime.load_prompts import MadeUp, Prompts, from_dataset
from evalpipe.runtime.place import output_of
from evalpipe.runtime.session import look, sim_profile
from evalpipe.runtime.signals import StopSignals
from evalpipe.sim.server import SimServer

SPARE_FILES = 100  # open files of this process beside its connections


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What is asked, and of how much. prompt_tokens, prompt_sigma: of made-up prompts; from_dataset: of the config's.

    output_tokens: so many where the server can be made to; None: as the model likes, at most sampling.max_tokens.
    workers: 1 sends from this process, more from so many on Ray.
    """

    slo: Slo
    seed: int = 0
    arrivals: ArrivalKind = "poisson"
    prompt_tokens: int = 512
    prompt_sigma: float = 0.0
    from_dataset: bool = False
    output_tokens: int | None = None
    most_in_flight: int = 2_000
    workers: int = 1
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LoadTest:
    """A load test that may begin."""

    bench: LoadBench
    files: LoadFiles
    looked: Preflight
    slo: Slo
    signals: StopSignals


@contextmanager
def open_load_test(
    config: Config, settings: LoadSettings, *, on_probe: Callable[[Probe], None], on_row: Callable[[Point], None]
) -> Iterator[LoadTest]:
    """Open everything a load test needs, cheap checks first; close it at the end.

    on_probe: told what is run next. on_row: told each row when its requests are stored. Raises ConfigError, DataError,
    and RunFatal for a server that cannot be used.
    """
    allow_files(settings.most_in_flight + SPARE_FILES)
    with ExitStack() as stack:
        prompts = _prompts(config, settings, stack)
        endpoint = config.endpoint
        if config.is_simulated:
            server = stack.enter_context(
                SimServer(sim_profile(config), options=config.sim.options, seed=config.sim.seed)
            )
            endpoint = endpoint.model_copy(update={"base_url": server.base_url})
        looked = look(endpoint, config.sampling)
        name = settings.name or f"loadtest-{re.sub(r'[^A-Za-z0-9._-]+', '-', looked.model)[:80].strip('-.')}"
        files = LoadFiles(output_of(config), name)
        if settings.workers > 1:
            _join_ray(config.run.ray_address, stack)
        signals = stack.enter_context(StopSignals())  # after Ray, which sets handlers of its own

        def keep(point: Point, requests: Sequence[Request]) -> None:
            files.add(point, requests)
            on_row(point)

        sampling = forced(config.sampling, settings.output_tokens, looked)
        cap = settings.most_in_flight
        bench = LoadBench(
            looked,
            prompts,
            BenchSettings(settings.slo, sampling, settings.arrivals, cap),
            make_crew=None if settings.workers == 1 else partial(_ray_crew, looked, sampling, cap, settings.workers),
            on_probe=on_probe,
            on_row=keep,
            is_interrupted=lambda: signals.received is not None,
        )
        yield LoadTest(stack.enter_context(bench), files, looked, settings.slo, signals)


def forced(sampling: SamplingConfig, output_tokens: int | None, looked: Preflight) -> SamplingConfig:
    """Return the sampling that makes every answer so long, as far as the server is known to obey."""
    if output_tokens is None:
        return sampling
    extra: dict[str, object] = {}
    if (
        looked.metrics_flavour != "none"
    ):  # vLLM, SGLang and llama.cpp know this name; strict gateways refuse unknown ones
        extra["ignore_eos"] = True
    if looked.metrics_flavour == "vllm":
        extra["min_tokens"] = output_tokens
    return sampling.model_copy(update={"max_tokens": output_tokens, "extra_body": {**extra, **sampling.extra_body}})


def allow_files(count: int) -> None:
    """Raise the soft limit of open files to `count`. Raises ConfigError where the hard limit is below."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigError(f"{count} open files are needed, the system allows {hard}; lower --most-in-flight")
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _join_ray(address: str | None, stack: ExitStack) -> None:
    from evalpipe.runtime import fleet  # ray takes a second to import

    if fleet.connect(address):
        stack.callback(fleet.disconnect)


def _ray_crew(looked: Preflight, sampling: SamplingConfig, cap: int, workers: int) -> Crew:
    from evalpipe.runtime.load_ray import RayCrew

    return RayCrew(looked, sampling, cap=cap, workers=workers)


def _prompts(config: Config, settings: LoadSettings, stack: ExitStack) -> Prompts:
    if settings.from_dataset and settings.workers > 1:
        raise ConfigError("--dataset needs --workers 1: the dataset is open in this process only")
    if settings.from_dataset:
        return from_dataset(stack.enter_context(open_dataset(config.dataset)), config)
    if settings.prompt_tokens < 1 or settings.prompt_sigma < 0:
        raise ConfigError(
            f"prompts need at least 1 token and sigma >= 0, got {settings.prompt_tokens} and {settings.prompt_sigma:g}"
        )
    return MadeUp(settings.prompt_tokens, settings.prompt_sigma, settings.seed)
