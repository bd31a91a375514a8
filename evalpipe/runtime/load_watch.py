"""The server's own counters during a load test, read each second over a connection of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from evalpipe.config import SamplingConfig
from evalpipe.endpoint.preflight import Preflight
from evalpipe.errors import EndpointError
from evalpipe.loadtest.metrics import read_metrics
from evalpipe.loadtest.records import ServerSample
from evalpipe.runtime.load_crew import LEAD_S, connect

SAMPLE_S = 1.0
LOOK_WITHIN_S = 1.0
IDLE_WITHIN_S, IDLE_POLL_S = 60.0, 0.5
QUIET_S = 2.0  # where the server does not tell whether it is idle


class ServerWatch:
    """Looks at /metrics. Build it inside the event loop that uses it. Where the server has none, it sees nothing."""

    def __init__(self, looked: Preflight, sampling: SamplingConfig) -> None:
        self._endpoint = connect(looked, sampling, cap=1)
        self._has_metrics = looked.metrics_flavour != "none"
        self._url = looked.base_url.removesuffix("/v1") + "/metrics"

    async def follow(self, samples: list[ServerSample]) -> None:
        """Add a sample each second, on the time of a row that begins now, until cancelled."""
        zero_at = time.monotonic() + LEAD_S
        while self._has_metrics:
            sample = await self._look(time.monotonic() - zero_at)
            if sample is not None:
                samples.append(sample)
            await asyncio.sleep(SAMPLE_S)

    async def until_idle(self, *, is_first: bool, is_interrupted: Callable[[], bool]) -> None:
        """Wait until nothing runs or waits at the server, a minute at most: one that others use is never idle."""
        if not self._has_metrics:
            await asyncio.sleep(0.0 if is_first else QUIET_S)
            return
        ends_at = time.monotonic() + IDLE_WITHIN_S
        while time.monotonic() < ends_at and not is_interrupted():
            sample = await self._look(0.0)
            if sample is None or sample.running + sample.waiting == 0:
                return
            await asyncio.sleep(IDLE_POLL_S)

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def _look(self, at: float) -> ServerSample | None:
        try:
            page = await self._endpoint.get(self._url, deadline_s=LOOK_WITHIN_S)
        except EndpointError:
            return None  # a server that is busy or down answers nothing here either; the rows say so
        return read_metrics(page.decode(errors="replace"), at=at)
