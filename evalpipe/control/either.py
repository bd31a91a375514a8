"""`progress-or-regress`: `progress` where streams can be seen, else `regress`.

It looks at what comes, not at what was asked for. A server may not stream, and a proxy may deliver a stream in one
piece: then first tokens come with the end of the answer and tell nothing of a queue. Both laws see everything all the
time; the one that does not steer is kept at the limit of the one that does, so that a change of hands changes no limit,
and finds a law that knows the server already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from evalpipe.control.law import Bounds, Law, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.progress import ProgressLaw, ProgressState
from evalpipe.control.regress import RegressLaw, RegressState

Name = Literal["progress", "regress"]

TELLING_TOKENS = 16  # an answer of fewer ends with its first chunk on any server
EARLY = 0.8  # of its latency: a first token by then came ahead of the end
MEMORY = 0.98  # the last 50 answers or so
ENOUGH = 12.0  # answers before a verdict
# Share of answers with an early first token. A sample of a tenth is enough for `progress`; a buffering proxy that lets
# one through now and then is not.
BLIND_BELOW, SEES_ABOVE = 0.03, 0.06


@dataclass(slots=True)
class EitherState:
    """JSON-able. active: the law that steers. judged, early: answers that could tell, and that did, decayed."""

    limit: float
    epoch: int = 0
    active: Name = "progress"
    judged: float = 0.0
    early: float = 0.0
    progress: ProgressState = field(default_factory=lambda: ProgressState(limit=1.0))
    regress: RegressState = field(default_factory=lambda: RegressState(limit=1.0, mode="startup"))


class EitherLaw:
    """Hold both laws, let one of them steer. `why` says which and why, in words for the user."""

    def __init__(self, bounds: Bounds, *, state: EitherState | None = None) -> None:
        self.bounds = bounds
        self.state = state if state is not None else EitherState(limit=bounds.start)
        self.state.limit = bounds.clamp(self.state.limit)
        self._align()
        self._laws: dict[Name, Law] = {
            "progress": ProgressLaw(bounds, state=self.state.progress),
            "regress": RegressLaw(bounds, state=self.state.regress),
        }
        self._samples: list[Sample] = []

    @property
    def why(self) -> str:
        """Return the law that steers and the reason, e.g. for the panel."""
        state = self.state
        if state.judged < ENOUGH:
            return f"{state.active}: too few answers yet to tell whether streams can be seen"
        seen = f"{state.early / state.judged:.0%} of the last answers showed a first token ahead of their end"
        return f"{state.active}: {seen}"

    def observe(self, observation: Observation) -> None:
        self._samples.extend(observation.samples)
        for law in self._laws.values():
            law.observe(observation)

    def decide(self, *, now: float) -> LimitChange | None:
        samples, self._samples = self._samples, []
        self._count(samples)
        is_handed_over = self._choose()
        self._align()  # a quota may have moved limit and epoch from outside (control/pacing.py)
        changes = {name: law.decide(now=now) for name, law in self._laws.items()}
        if not is_handed_over:
            active = self._laws[self.state.active].state
            self.state.limit, self.state.epoch = active.limit, active.epoch
        self._align()
        change = None if is_handed_over else changes[self.state.active]
        return None if change is None else _named(change, self.state.active)

    def _count(self, samples: Iterable[Sample]) -> None:
        """Count the answers that can tell whether streams can be seen."""
        for sample in samples:
            if sample.outcome is Outcome.OK and sample.output_tokens >= TELLING_TOKENS:
                is_early = sample.ttft_s is not None and sample.ttft_s < EARLY * sample.rtt_s
                self.state.judged = MEMORY * self.state.judged + 1.0
                self.state.early = MEMORY * self.state.early + is_early

    def _choose(self) -> bool:
        """Hand over once the answers are enough and plain; a settled law is followed by a settled one."""
        state = self.state
        share = state.early / state.judged if state.judged >= ENOUGH else None
        if share is not None and share < BLIND_BELOW and state.active == "progress":
            state.active = "regress"
            state.regress.mode = "cruise" if state.progress.mode == "cruise" else state.regress.mode
            return True
        if share is not None and share > SEES_ABOVE and state.active == "regress":
            state.active = "progress"
            state.progress.mode = "cruise" if state.regress.mode == "cruise" else state.progress.mode
            return True
        return False

    def _align(self) -> None:
        """Both stand where the limit is, and count the same cuts: samples carry the epoch of whoever steered."""
        for inner in (self.state.progress, self.state.regress):
            inner.limit, inner.epoch = self.state.limit, self.state.epoch


def _named(change: LimitChange, law: Name) -> LimitChange:
    return replace(change, evidence=replace(change.evidence, state=f"{law} {change.evidence.state}".rstrip()))
