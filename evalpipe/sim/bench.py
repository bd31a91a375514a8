"""Probes run in virtual time: what `evalpipe loadtest` does over HTTP, against a profile and without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evalpipe.loadtest.probe import Point, Probe
from evalpipe.loadtest.records import LoadRun, Request
from evalpipe.loadtest.rows import make_point
from evalpipe.loadtest.sequential import Ruling, rule
from evalpipe.loadtest.slo import Slo
from evalpipe.sim.load import Workload, closed_loop, open_loop
from evalpipe.sim.profiles import Profile


@dataclass(slots=True)
class VirtualBench:
    """Runs probes on a fresh server each: one that was flooded is idle again before the next."""

    profile: Profile
    slo: Slo = field(default_factory=Slo)
    prompt_tokens: int = 512
    seconds: float = 0.0  # virtual time spent so far
    _best_tokens_per_s: float = 0.0

    def run(self, probe: Probe) -> Point:
        run = self._run(probe)
        self.seconds += run.ended_at
        point = make_point(
            probe,
            run,
            slo=self.slo,
            best_tokens_per_s=self._best_tokens_per_s,
        )
        self._best_tokens_per_s = max(self._best_tokens_per_s, point.measures.output_tokens_per_s)
        return point

    def _run(self, probe: Probe) -> LoadRun:
        workload = Workload(self.profile, probe.prompt_tokens or self.prompt_tokens, probe.seed)
        if probe.loop == "closed":
            return closed_loop(workload, int(probe.level), duration_s=probe.window.end, stagger_s=probe.stagger_s)

        def is_certain(requests: Sequence[Request], now: float) -> bool:
            return rule(requests, probe.window, slo=self.slo, now=now) is not Ruling.UNDECIDED

        return open_loop(
            workload,
            probe.arrivals(),
            duration_s=probe.window.end,
            stop=is_certain if probe.may_stop else None,
        )
