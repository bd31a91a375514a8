"""Runs probes against a real server, one after the other, in one process: the counterpart of sim/bench.py.

Between two probes it waits until the server is idle again, so that no row pays for the one before it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

import uvloop

from evalpipe.config import Config
from evalpipe.endpoint.client import Endpoint
from evalpipe.endpoint.preflight import Preflight
from evalpipe.errors import EndpointError, Failure, RunFatal
from evalpipe.loadtest.arrivals import ArrivalKind
from evalpipe.loadtest.checks import Client
from evalpipe.loadtest.metrics import read_metrics
from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.records import LoadRun, Request, ServerSample
from evalpipe.loadtest.rows import make_point, traffic_of
from evalpipe.loadtest.sequential import Ruling, rule
from evalpipe.loadtest.slo import Slo
from evalpipe.loadtest.verdict import Verdict
from evalpipe.runtime.lean import calm_gc
from evalpipe.runtime.load_loop import Bounds, Health, LoadGate, LoadLoop
from evalpipe.runtime.load_prompts import MadeUp, Prompts
from evalpipe.runtime.schedule import ScheduleGate, UsersGate

LEAD_S = 0.1  # between the decision to start and the first instant
DRAIN_S = 60.0
IDLE_WITHIN_S, IDLE_POLL_S = 60.0, 0.5
QUIET_S = 2.0  # where the server does not tell whether it is idle
LOOK_WITHIN_S = 1.0


class Interrupted(Exception):
    """The user stopped the test; the row it broke off is in `point`."""

    def __init__(self, point: Point) -> None:
        super().__init__("stopped by a signal")
        self.point = point


class LoadBench:
    """Builds and closes its own event loop; use it in a `with`, in the main thread.

    looked: what preflight found. on_row: told each row and the requests behind it. is_interrupted: asked all the time.
    Raises Interrupted out of `run`, and RunFatal after a row that says `down`: nothing after it would tell anything.
    """

    def __init__(
        self,
        config: Config,
        looked: Preflight,
        prompts: Prompts,
        *,
        slo: Slo,
        arrivals: ArrivalKind = "poisson",
        most_in_flight: int = 2_000,
        on_row: Callable[[Point, Sequence[Request]], None] = lambda point, requests: None,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config, self._looked, self._prompts = config, looked, prompts
        self._slo, self._arrivals, self._most_in_flight = slo, arrivals, most_in_flight
        self._on_row, self._is_interrupted = on_row, is_interrupted
        self._best_tokens_per_s = 0.0
        self._asked = 0  # prompts so far: no probe repeats those of another
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def __enter__(self) -> LoadBench:
        calm_gc()
        self._endpoint, self._watcher = self._runner.run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def run(self, probe: Probe) -> Point:
        run, client = self._runner.run(self._run(probe))
        point = make_point(probe, run, slo=self._slo, client=client, best_tokens_per_s=self._best_tokens_per_s)
        if point.is_usable:
            self._best_tokens_per_s = max(self._best_tokens_per_s, point.measures.output_tokens_per_s)
        self._on_row(point, run.requests)
        if self._is_interrupted():
            raise Interrupted(point)
        if point.verdict is Verdict.DOWN:
            counts = {**point.measures.errors, "unanswered": point.measures.unfinished}
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
            raise RunFatal(
                Failure("unreachable", message=f"{self._looked.base_url} went down during the test: {kinds}")
            )
        return point

    async def _open(self) -> tuple[Endpoint, Endpoint]:
        """Return the client that is measured, and one of its own for looking at the server's counters."""
        return self._connect(self._most_in_flight), self._connect(1)

    def _connect(self, cap: int) -> Endpoint:
        looked = self._looked
        return Endpoint(looked.config, self._config.sampling, model=looked.model, base_url=looked.base_url, cap=cap)

    async def _close(self) -> None:
        await self._endpoint.aclose()
        await self._watcher.aclose()

    async def _run(self, probe: Probe) -> tuple[LoadRun, Client]:
        await self._until_idle()
        prompts = self._prompts
        if probe.prompt_tokens is not None and isinstance(prompts, MadeUp):
            prompts = replace(prompts, tokens=probe.prompt_tokens, sigma=0.0)
        zero_at = time.monotonic() + LEAD_S
        first, planned = self._asked, probe.arrivals(self._arrivals) if probe.loop == "open" else []
        loop = LoadLoop(
            self._endpoint,
            lambda number: prompts(first + number),
            zero_at=zero_at,
            look=self._look if self._has_metrics else None,
        )
        run, health = await loop.run(self._gate(probe, planned, zero_at), self._bounds(probe))
        self._asked += len(run.requests)
        return run, self._client(probe, run, health, planned)

    def _gate(self, probe: Probe, planned: Sequence[float], zero_at: float) -> LoadGate:
        if probe.loop == "open":
            return ScheduleGate(planned, zero_at=zero_at, clock=time.monotonic)
        users = int(probe.level)
        starts = [user * probe.stagger_s / users for user in range(users)]
        return UsersGate(starts, zero_at=zero_at, clock=time.monotonic)

    def _bounds(self, probe: Probe) -> Bounds:
        if probe.loop == "closed":
            most = max(self._most_in_flight, int(probe.level))
            return Bounds(probe.window.end, 0.0, most, failed_wait_s=1.0, is_interrupted=self._is_interrupted)

        def is_certain(requests: Sequence[Request], now: float) -> bool:
            return probe.may_stop and rule(requests, probe.window, slo=self._slo, now=now) is not Ruling.UNDECIDED

        return Bounds(
            probe.window.end, DRAIN_S, self._most_in_flight, is_certain=is_certain, is_interrupted=self._is_interrupted
        )

    def _client(self, probe: Probe, run: LoadRun, health: Health, planned: Sequence[float]) -> Client:
        client = Client(health.cpu_share, health.lag_p99_s)
        if probe.loop == "closed":
            return client
        due = [at for at in planned if at < run.sent_until]
        return traffic_of(client, probe, due, sorted(request.sent_at for request in run.requests))

    @property
    def _has_metrics(self) -> bool:
        return self._looked.metrics_flavour != "none"

    async def _look(self, at: float) -> ServerSample | None:
        url = self._looked.base_url.removesuffix("/v1") + "/metrics"
        try:
            page = await self._watcher.get(url, deadline_s=LOOK_WITHIN_S)
        except EndpointError:
            return None  # a server that is busy or down answers nothing here either; the rows say so
        return read_metrics(page.decode(errors="replace"), at=at)

    async def _until_idle(self) -> None:
        """Wait until nothing runs or waits at the server; a server that others use too is never idle."""
        if not self._has_metrics:
            await asyncio.sleep(QUIET_S if self._asked else 0.0)
            return
        ends_at = time.monotonic() + IDLE_WITHIN_S
        while time.monotonic() < ends_at and not self._is_interrupted():
            sample = await self._look(0.0)
            if sample is None or sample.running + sample.waiting == 0:
                return
            await asyncio.sleep(IDLE_POLL_S)
