"""Runs probes against a real server, one after the other: the counterpart of sim/bench.py.

Between two probes it waits until the server is idle again, so that no row pays for the one before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType

import uvloop

from evalpipe.config import SamplingConfig
from evalpipe.endpoint.preflight import Preflight
from evalpipe.errors import Failure, RunFatal
from evalpipe.loadtest.arrivals import ArrivalKind
from evalpipe.loadtest.checks import Client
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.records import LoadRun, Request, ServerSample
from evalpipe.loadtest.rows import make_point, traffic_of
from evalpipe.loadtest.sequential import Ruling, rule
from evalpipe.loadtest.slo import Slo
from evalpipe.loadtest.verdict import Verdict
from evalpipe.runtime.lean import calm_gc
from evalpipe.runtime.load_crew import Crew, LoadJob, LocalCrew
from evalpipe.runtime.load_loop import Health
from evalpipe.runtime.load_prompts import MadeUp, Prompts
from evalpipe.runtime.load_watch import ServerWatch

DRAIN_S = 60.0


class Interrupted(Exception):
    """The user stopped the test; the row it broke off was told to on_row."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """slo: what rows are judged by. most_in_flight: in open loop, more ends a row. sampling: of every request."""

    slo: Slo
    sampling: SamplingConfig
    arrivals: ArrivalKind = "poisson"
    most_in_flight: int = 2_000


class LoadBench:
    """Builds and closes its own event loop; use it in a `with`, in the main thread.

    looked: what preflight found. on_probe: told what is run next. on_row: told each row and the requests behind it.
    is_interrupted: asked all the time.
    make_crew: who sends, built inside the event loop; None: this process. `run` raises Interrupted, and RunFatal after
    a row that says `down`: nothing after it would tell anything.
    """

    def __init__(
        self,
        looked: Preflight,
        prompts: Prompts,
        settings: BenchSettings,
        *,
        make_crew: Callable[[], Crew] | None = None,
        on_probe: Callable[[Probe], None] = lambda probe: None,
        on_row: Callable[[Point, Sequence[Request]], None] = lambda point, requests: None,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._looked, self._prompts, self._settings = looked, prompts, settings
        self._make_crew, self._on_probe, self._on_row = make_crew, on_probe, on_row
        self._is_interrupted = is_interrupted
        self._best_tokens_per_s = 0.0
        self._asked = 0  # prompts so far: no probe repeats those of another
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def __enter__(self) -> LoadBench:
        calm_gc()
        self._runner.run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def run(self, probe: Probe) -> Point:
        self._on_probe(probe)
        run, client = self._runner.run(self._run(probe))
        point = make_point(probe, run, slo=self._settings.slo, client=client, best_tokens_per_s=self._best_tokens_per_s)
        if point.is_usable:
            self._best_tokens_per_s = max(self._best_tokens_per_s, point.measures.output_tokens_per_s)
        self._on_row(point, run.requests)
        if self._is_interrupted():
            raise Interrupted("stopped by a signal")
        if point.verdict is Verdict.DOWN:
            raise RunFatal(Failure("unreachable", message=_obituary(self._looked.base_url, point)))
        return point

    async def _open(self) -> None:
        settings = self._settings
        self._watch = ServerWatch(self._looked, settings.sampling)
        self._crew: Crew = (
            self._make_crew()
            if self._make_crew is not None
            else LocalCrew(self._looked, settings.sampling, cap=settings.most_in_flight)
        )

    async def _close(self) -> None:
        await self._crew.aclose()
        await self._watch.aclose()

    async def _run(self, probe: Probe) -> tuple[LoadRun, Client]:
        await self._watch.until_idle(is_first=not self._asked, is_interrupted=self._is_interrupted)
        job, samples = self._job(probe), list[ServerSample]()
        watching = asyncio.create_task(self._watch.follow(samples))
        try:
            run, health = await self._crew.run(
                job,
                self._prompts_of(probe),
                is_certain=lambda requests, now: self._is_certain(probe, requests, now),
                is_interrupted=self._is_interrupted,
            )
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        self._asked += len(run.requests)
        return replace(run, samples=samples), _client(probe, job, run, health)

    def _job(self, probe: Probe) -> LoadJob:
        most = self._settings.most_in_flight
        if probe.loop == "open":
            instants = probe.arrivals(self._settings.arrivals)
            return LoadJob("open", instants, probe.window.end, DRAIN_S, most, first_prompt=self._asked)
        users = int(probe.level)
        starts = [user * probe.stagger_s / users for user in range(users)]
        return LoadJob("closed", starts, probe.window.end, 0.0, max(most, users), first_prompt=self._asked)

    def _prompts_of(self, probe: Probe) -> Prompts:
        if probe.prompt_tokens is not None and isinstance(self._prompts, MadeUp):
            return replace(self._prompts, tokens=probe.prompt_tokens, sigma=0.0)
        return self._prompts

    def _is_certain(self, probe: Probe, requests: Sequence[Request], now: float) -> bool:
        if not probe.may_stop:
            return False
        return rule(requests, probe.window, slo=self._settings.slo, now=now) is not Ruling.UNDECIDED


def _client(probe: Probe, job: LoadJob, run: LoadRun, health: Health) -> Client:
    client = Client(health.cpu_share, health.lag_p99_s)
    if probe.loop == "closed":
        return client
    sent = sorted(request.sent_at for request in run.requests)
    return traffic_of(client, probe, job.instants, sent, until=run.sent_until)


def _obituary(base_url: str, point: Point) -> str:
    counts = {**point.measures.errors, "unanswered": point.measures.unfinished}
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"{base_url} went down during the test: {kinds}"
