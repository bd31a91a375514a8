"""A driver as a simulated process: the order of steps is that of `evalpipe.run`, each of them the real one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from simulation.disk import FOLDER
from simulation.scheduler import Killed, Process
from simulation.weather import Weather

from evalpipe.config import Config, EndpointConfig, parse_config
from evalpipe.endpoint.preflight import Preflight
from evalpipe.errors import ConfigError, EvalPipeError, Fenced, Resumable
from evalpipe.records import Example
from evalpipe.runtime.clock import Clock
from evalpipe.runtime.conduct import compact_only, conduct, needs_compaction
from evalpipe.runtime.fleet import RayFleet
from evalpipe.runtime.session import Session
from evalpipe.runtime.signals import StopSignals
from evalpipe.runtime.silence import await_silence
from evalpipe.store.log import Log, read_state
from evalpipe.store.objects import ObjectStore, probe
from evalpipe.store.readable import to_yaml
from evalpipe.store.spec import Spec, write_spec

NAME = FOLDER.name
TTL_S, EXCHANGE_S, FLUSH_S = 15.0, 0.5, 2.0


def config_of(weather: Weather) -> Config:
    return parse_config(
        {
            "run": {"name": NAME, "workers": weather.workers, "flush_s": FLUSH_S},
            "endpoint": {"model": "m", "trace_header": True, "deadline_s": 10.0},
            "control": {
                "law": weather.law,
                "start": weather.limit,
                "max_limit": 2 * weather.limit,
                "ttl_s": TTL_S,
                "exchange_s": EXCHANGE_S,
            },
            "scorer": {"name": "none"},
        }
    )


def dataset_of(items: int) -> Any:
    """Return what a driver asks of a Dataset."""

    def example(index: int) -> Example:
        return Example(index, f"i{index}", "", None, {"question": f"Number {index}?"})

    return SimpleNamespace(order=np.arange(items, dtype=np.int64), example=example)


def spec_of(config: Config, items: int) -> Spec:
    return Spec(config.semantic(), hashlib.sha256(b"%d" % items).hexdigest(), items)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a driver ended. exit_code: None when it died. why: for the trace."""

    exit_code: int | None
    why: str = ""


class SimDriver:
    """One driver process. log: its hold on the run, for the checker."""

    def __init__(
        self, process: Process, *, weather: Weather, store: ObjectStore, clock: Clock, takeover: bool, writer: str
    ) -> None:
        self.process, self.takeover = process, takeover
        self._weather, self._store, self._clock = weather, store, clock
        self.log = Log(store, writer=writer, stamp=lambda: (clock.wall(), clock.now()))
        self.ended: Ended | None = None
        self.fenced_at: float | None = None

    def main(self, on_end: Callable[[SimDriver], None]) -> None:
        """Run to the end, whatever that is."""
        try:
            self.ended = self._work()
        except Killed:
            self.ended = Ended(None, "killed")
            raise
        except Fenced as error:
            self.ended = Ended(75, f"fenced: {error}")
        except (Resumable, OSError) as error:
            self.ended = Ended(75, f"{type(error).__name__}: {error}")
        except ConfigError as error:
            self.ended = Ended(2, f"ConfigError: {error}")
        except EvalPipeError as error:
            self.ended = Ended(78, f"{type(error).__name__}: {error}")
        on_end(self)

    def _work(self) -> Ended:
        session = self._open()
        if not session.is_complete:
            outcome = conduct(
                session,
                make_fleet=partial(RayFleet, session.config.control, self._weather.workers, clock=self._clock),
                workers=self._weather.workers,
                signals=StopSignals(),
                show=lambda progress: None,
                say=lambda line: None,
                run_log=self.log,
                clock=self._clock,
            )
            return Ended(outcome.ending.exit_code, outcome.ending.why)
        if needs_compaction(session.store, session.state):
            compact_only(session, say=lambda line: None, run_log=self.log, clock=self._clock)
        return Ended(0)

    def _open(self) -> Session:
        """What `open_session` does with the store, in its order."""
        weather, store = self._weather, self._store
        config = config_of(weather)
        config = config.model_copy(update={"run": config.run.model_copy(update={"takeover": self.takeover})})
        spec, state = spec_of(config, weather.items), read_state(store)
        endpoint = Preflight("http://sim/v1", "m", ("m",), True, "none", (), EndpointConfig())
        dataset = dataset_of(weather.items)
        session = Session(config, NAME, store, None, dataset, spec, state, None, endpoint, None)
        if not session.is_complete and not self.takeover:
            await_silence(store, state.epoch, say=lambda line: None, clock=self._clock)
        probe(store)
        write_spec(store, spec)
        store.put("config.yaml", to_yaml("run: {}\n"))
        return session
