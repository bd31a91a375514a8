"""What to try (Probe) and what came of it (Point). The search for the knee asks in the one and is told in the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from evalpipe.loadtest.arrivals import ArrivalKind, schedule
from evalpipe.loadtest.checks import Client
from evalpipe.loadtest.measures import Measures
from evalpipe.loadtest.records import Moment, Window
from evalpipe.loadtest.stability import Stability
from evalpipe.loadtest.verdict import Verdict

Loop = Literal["closed", "open"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One test to run. level: users in closed loop, requests/s in open loop. seed: of arrivals and lengths.

    The first warmup_s are not measured; duration_s are. stagger_s: over which the users of a closed loop begin.
    may_stop: it ends as soon as pass or fail is certain. spike: (requests/s, seconds) of a flood before the warm-up.
    prompt_tokens: length of made-up prompts where it is not the test's own.
    """

    loop: Loop
    level: float
    warmup_s: float = 10.0
    duration_s: float = 60.0
    seed: int = 0
    stagger_s: float = 3.0
    may_stop: bool = False
    spike: tuple[float, float] | None = None
    prompt_tokens: int | None = None

    @property
    def lead_s(self) -> float:
        """Seconds before the window: flood and warm-up."""
        return self.warmup_s + (self.spike[1] if self.spike else 0.0)

    @property
    def window(self) -> Window:
        return Window(self.lead_s, self.lead_s + self.duration_s)

    def arrivals(self, kind: ArrivalKind = "poisson") -> list[float]:
        """Return the whole schedule of an open loop: the flood, then the rate that is measured."""
        if self.spike is None:
            return schedule(kind, rate_per_s=self.level, duration_s=self.window.end, seed=self.seed)
        rate, seconds = self.spike
        flood = schedule(kind, rate_per_s=rate, duration_s=seconds, seed=self.seed)
        calm = schedule(kind, rate_per_s=self.level, duration_s=self.window.end - seconds, seed=self.seed + 1)
        return [*flood, *(seconds + at for at in calm)]


@dataclass(frozen=True, slots=True)
class Block:
    """Requests scheduled in one stretch of a window, and those of them that broke the SLO."""

    offered: int
    bad: int


@dataclass(frozen=True, slots=True)
class Point:
    """One row: what was tried, what was measured, and what it is worth. notes: what the checks say of it.

    blocks: equal stretches of the window, in order. binding: the limit of the SLO that most requests broke, or "".
    recovery_s: after a flood, until requests met the SLO again; None: they did not, or there was no flood.
    timeline: second by second, of a row that was not carried, where the server tells of itself.
    """

    probe: Probe
    measures: Measures
    stability: Stability
    client: Client
    verdict: Verdict
    notes: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    binding: str = ""
    recovery_s: float | None = None
    timeline: tuple[Moment, ...] = ()

    @property
    def is_usable(self) -> bool:
        return self.verdict is not Verdict.INVALID

    def to_dict(self) -> dict[str, Any]:
        probe = self.probe
        body: dict[str, Any] = {"loop": probe.loop, "seed": probe.seed, "verdict": self.verdict.value}
        body |= {"notes": list(self.notes), "is_stable": self.stability.is_stable}
        body["max_concurrency" if probe.loop == "closed" else "request_rate"] = probe.level
        body |= {"client_cpu_share": self.client.cpu_share, "loop_lag_p99_ms": 1000 * self.client.lag_p99_s}
        sent = self.client.sent
        if sent is not None:
            body |= {"dispersion": sent.dispersion, "ks_p": sent.ks_p, "gap_correlation": sent.correlation}
        return body | self.measures.to_dict()
