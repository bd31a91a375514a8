"""The controller of a run without Ray: it stamps the time, calls the core and returns. It holds no policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from evalpipe.config import ControlConfig, QuotaConfig
from evalpipe.control.build import build_law
from evalpipe.control.core import ControlCore, Tick, TimedChange
from evalpipe.control.law import LawState
from evalpipe.control.lease import Lease, Process, Report
from evalpipe.control.quota import UNDECLARED, Quota
from evalpipe.control.warm import Settled, WarmStart


@dataclass(frozen=True, slots=True)
class ControlRecords:
    """What the controller recorded since the last reading, and where it stands now. state: all that the law knows.

    pace: requests a second that it learned from refusals for a quota, None before any.
    """

    limit: float
    in_flight: int
    ticks: Sequence[Tick]
    changes: Sequence[TimedChange]
    state: LawState
    pace: float | None = None


@dataclass(frozen=True, slots=True)
class Predecessor:
    """What a controller finds when it begins. epoch: its first, above all that permits were stamped with before it.

    state: of the law as last read from the controller before it, None for the first; pace: as it had learned it.
    processes: they may hold leases.
    settled: where an earlier run was, None to begin cold; a controller with a state goes on from that instead.
    """

    epoch: int = 0
    state: LawState | None = None
    processes: frozenset[Process] = frozenset()
    settled: Settled | None = None
    pace: float | None = None


class Controller:
    """The one limit of a run. Every method answers at once."""

    def __init__(
        self,
        config: ControlConfig,
        before: Predecessor,
        *,
        quota: Quota = UNDECLARED,
        now: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """cpu_s: CPU time of this process, None where it is not the controller's alone."""
        self._cpu_s = cpu_s
        self._core, self._now = build_core(config, before, quota), now

    def exchange(self, report: Report) -> Lease:
        return self._core.exchange(report, now=self._now(), cpu_s=self._cpu_s())

    def release(self, process: Process) -> None:
        self._core.release(process)

    def read(self) -> ControlRecords:
        core = self._core
        ticks, changes = core.drain_records()
        pace = None if core.pacer is None else core.pacer.learned.rate
        return ControlRecords(core.limit, core.book.in_flight, ticks, changes, core.law.state, pace)


def build_core(config: ControlConfig, before: Predecessor, quota: Quota = UNDECLARED) -> ControlCore:
    """Build control for a run. Raises ConfigError for a law or option that does not exist."""
    bounded = partial(build_law, start=config.start, min_limit=config.min_limit, max_limit=config.max_limit)
    law = bounded(config.law, state=before.state, **config.options)
    law.state.epoch = max(law.state.epoch, before.epoch)
    if before.state is None and before.settled is not None:
        law = WarmStart(law, before.settled)
    shadows = {name: bounded(name) for name in config.shadows}
    return ControlCore(
        law,
        ttl_s=config.ttl_s,
        exchange_s=config.exchange_s,
        shadows=shadows,
        unheard=before.processes,
        quota=quota,
        pace=before.pace,
    )


def quota_of(config: QuotaConfig) -> Quota:
    """Return the quota that was declared."""
    return Quota(rpm=config.rpm, tpm=config.tpm, share=config.share)
