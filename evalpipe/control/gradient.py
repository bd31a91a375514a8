"""`gradient`: the gradient law made to work on language models.

Latency over what this prompt and output should take without a queue, square-root headroom, one cut an episode. That is
learned in two parts: how much work they are (control/work.py), and how much longer work takes with more in flight while
nothing queues (control/curve.py): the tolerance that a batching server needs and a shared processor must not have.
The published form, to the letter, is in control/gradient_published.py.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

from evalpipe.control.ceiling import Ceiling
from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.levels import Level
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.survey import Answer, Finding, Survey, SurveyState, is_answer, level_of
from evalpipe.errors import ConfigError

# In use: in flight reached this share of the limit since the last move; below, growing would bank untested headroom.
BINDS = 0.9
ROUND_MIN, ROUND_MAX = 8, 64  # samples sent under the current limit that a decision needs: half a limit's worth
EARLY = 4  # answers that end a round in a collapse
CLEAR = 0.9  # of what it should be: slow start goes on
COLLAPSE, LEAST_GRADIENT = 0.6, 0.5  # of what it should be; and how far a single cut goes
AGES_S = 300.0  # what a level says counts about as long as a baseline that forgets in five minutes
HOLD_S = 30.0  # a collapse is remembered so long at least: growth stops short of where it happened
# A step of slow start: half as much again where an answer takes a second; finer where answers come sooner, for there a
# fine step costs little time, and a coarse one may pass the knee and fall off a cliff.
RAMP_FULL_S = 1.0
STAYS = 0.01  # a move smaller than this is noise
WIDE = 2.0  # times the lowest level known
ELASTIC = 0.1  # work/s must grow by so much of what in flight grows, or growing buys latency alone


@dataclass(slots=True)
class GradientState:
    """Memory of the law, JSON-able. slow_start ends at the first cut, or when latency first leaves what it should be.

    ceiling: where growth stops since the last collapse. elapsed_s: the law's clock, which is also the survey's.
    """

    limit: float
    epoch: int = 0
    slow_start: bool = True
    elapsed_s: float = 0.0
    ceiling: Ceiling = field(default_factory=Ceiling)
    survey: SurveyState = field(default_factory=SurveyState)


class GradientLaw:
    """Steer the limit so that latency stays what it is without a queue.

    round    = clamp(limit / 2, 8, 64) successes sent under the current limit
    gradient = latency per unit of work without a queue, at the level of the round or at the knee / that of the round
    target   = clamp(tolerance * gradient, 0.5, 1) * limit + sqrt(limit)

    In slow start, while the gradient is clear, a round multiplies the limit by up to `ramp`. After the gradient limit
    of Netflix/concurrency-limits; differs: latency per unit of learned work, a baseline for each level in flight and no
    minimum, only samples sent after the last move (as Envoy's), 429s and 503s cut once an episode.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        state: GradientState | None = None,
        tolerance: float = 1.0,
        ramp: float = 1.5,
        drop_factor: float = 0.7,
    ) -> None:
        if tolerance < 1.0 or ramp < 1.0 or not 0.0 < drop_factor < 1.0:
            raise ConfigError(
                "gradient: tolerance and ramp must be >= 1 and drop_factor between 0 and 1, got"
                f" tolerance={tolerance:g}, ramp={ramp:g}, drop_factor={drop_factor:g}"
            )
        self.bounds, self.tolerance, self.ramp, self.drop_factor = bounds, tolerance, ramp, drop_factor
        self.state = state if state is not None else GradientState(limit=bounds.start)
        self.state.limit = bounds.clamp(self.state.limit)
        self._survey = Survey(self.state.survey, ages_s=AGES_S)
        self._pending: list[Observation] = []
        self._last_now: float | None = None
        self._round: list[Answer] = []  # sent under the current limit
        self._fresh: deque[Answer] = deque(maxlen=ROUND_MIN)  # the newest, sent since the last cut
        self._judged = Evidence()  # what the last gradient was made of
        self._peak = 0

    def observe(self, observation: Observation) -> None:
        self._pending.append(observation)
        self._peak = max(self._peak, observation.in_flight_peak, observation.in_flight)

    def decide(self, *, now: float) -> LimitChange | None:
        self.state.elapsed_s += max(now - self._last_now, 0.0) if self._last_now is not None else 0.0
        self._last_now = now
        pending, self._pending = self._pending, []
        samples = [sample for observation in pending for sample in observation.samples]
        if pending:
            self._survey.note(pending[-1].in_flight, at=self.state.elapsed_s)
        taken = sum(self._take(sample) for sample in samples)
        if any(sample.outcome is Outcome.DROPPED and sample.epoch >= self.state.epoch for sample in samples):
            self._note_ceiling(self.state.limit)
            return self._move(self.state.limit * self.drop_factor, "rejected")
        return self._judge() if taken else None

    def _take(self, sample: Sample) -> bool:
        """Learn from a success; return whether it was one."""
        if not is_answer(sample):
            return False
        answer = self._survey.take(sample, at=self.state.elapsed_s)
        if sample.epoch == self.state.epoch:
            self._fresh.append(answer)
            if sample.limit == math.floor(self.state.limit):
                self._round.append(answer)
        return True

    def _judge(self) -> LimitChange | None:
        """End the round when it is full, or as soon as it is plain that more in flight get less done."""
        if len(self._fresh) >= EARLY and (share := self._share_of_best()) < COLLAPSE:
            self._note_ceiling(self.state.limit)
            return self._steer(share, "collapse")
        is_full = len(self._round) >= min(max(self.state.limit / 2, ROUND_MIN), ROUND_MAX)
        found = self._survey.find(at=self.state.elapsed_s) if is_full else None
        if found is None:
            return None
        look = level_of(self._round)
        return self._end_round(found, self._gradient(found, look), look)

    def _share_of_best(self) -> float:
        """Return the work per second of the newest answers, at most, over the best known of their level and below."""
        fresh = level_of(self._fresh)
        best = self._survey.best_rate(up_to=fresh.in_flight)
        return fresh.rate * (1.0 + fresh.error) / best if best > 0.0 else 1.0

    def _gradient(self, found: Finding, look: Level) -> float:
        """Return what work should take at this level, or at the knee where that is lower, over what it takes."""
        baseline_s, recent_s = found.curve.per_work_s(min(look.in_flight, _knee(found))), look.per_work_s
        self._judged = Evidence(baseline_s, recent_s, baseline_s / recent_s, per_work=True)
        return self.tolerance * baseline_s / recent_s

    def _end_round(self, found: Finding, gradient: float, look: Level) -> LimitChange | None:
        state, limit = self.state, self.state.limit
        if gradient < CLEAR or _knee(found) < look.in_flight:
            state.slow_start = False
        if not state.slow_start:
            return self._steer(gradient, "queue")
        clear = min((gradient - CLEAR) / (1.0 - CLEAR), 1.0)
        step = (self.ramp - 1.0) * min(self._survey.rtt_s / RAMP_FULL_S, 1.0) * clear
        return self._grow(max(limit * (1.0 + step), limit + 1.0))

    def _steer(self, gradient: float, reason: str) -> LimitChange | None:
        limit = self.state.limit
        target = min(max(gradient, LEAST_GRADIENT), 1.0) * limit + math.sqrt(limit)
        return self._grow(target) if target > limit else self._move(target, reason)

    def _grow(self, target: float) -> LimitChange | None:
        """Grow as far as the ceiling allows, if the limit is in use."""
        limit = self.state.limit
        is_used = self._peak >= BINDS * math.floor(limit)
        bound = self.state.ceiling.bound(self.state.elapsed_s)
        return self._move(max(min(target, bound), limit) if is_used else limit, "grow")

    def _note_ceiling(self, level: float) -> None:
        self.state.ceiling.note(level, at=self.state.elapsed_s)
        self.state.ceiling.hold_s = max(self.state.ceiling.hold_s, HOLD_S)

    def _move(self, target: float, reason: str) -> LimitChange | None:
        old = self.state.limit
        if abs(target - old) >= STAYS * old:
            self.state.limit = self.bounds.clamp(target)
        count, self._round, self._peak = len(self._round), [], 0
        if self.state.limit < old:
            self.state.epoch += 1
            self.state.slow_start = False
            self._fresh.clear()
        if self.state.limit == old:
            return None
        return LimitChange(old, self.state.limit, reason, replace(self._judged, samples=count))


def _knee(found: Finding) -> float:
    """Return the level beyond which more in flight get hardly more done; infinity where none is in sight."""
    knee = math.inf if found.curve.knee is None else found.curve.knee
    is_wide = found.top >= WIDE * found.low  # levels that lie close together have no slope to speak of
    return min(knee, max(found.curve.at_elasticity(ELASTIC), 1.0)) if is_wide else knee
