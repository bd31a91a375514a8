"""`regress`: for servers into whose streams nobody can look. Finished answers are all it sees.

A regression (control/work.py) tells how much work a prompt and an answer are; Little's law (control/levels.py) how much
of it gets done per second with how many in flight; one curve through all levels (control/curve.py) where more in flight
stops getting more done: the knee. The limit belongs there, and a little above.

    first     8 at most, for a few answers: a level to compare with, should the start lie in a collapse
    startup   the limit is twice the level that proved to pay, as soon as a few answers tell so
    cruise    round by round it goes to the knee; where that is settled, it looks above and below now and then
    outage    everything fails: it waits at the floor for the first answer

A knee alone is blind to a collapse (more in flight, far less done). That is told by work which fails to come back
(control/delivery.py); the level is remembered as a ceiling, and while what is out drains, the limit stays where work
begins to flow again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from evalpipe.control.ceiling import SAME, Ceiling
from evalpipe.control.curve import Curve
from evalpipe.control.delivery import BACK_ANSWERS
from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.levels import Level, pooled
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.survey import LOOK_MOST, Survey, SurveyState, is_answer
from evalpipe.control.window import ILL

Mode = Literal["first", "startup", "cruise", "outage"]

FIRST_MOST, FIRST_ANSWERS = 8.0, 6  # the level, and the answers at it
BINDS = 0.8  # of the limit in flight: below, it is not in use
# Startup: twice what proved to pay, less where it pays less; steps of a twentieth, or the log is full of them.
RAMP, RAMP_STEP, LOOK_LEAST, LOOK_SHARE = 1.0, 1.05, 8, 0.25
UNKNOWN = 0.5  # elasticity before there is anything to compare with
APART, NEAR = 1.25, 1.4  # times less in flight: nearer levels tell nothing about elasticity, others of elsewhere
PAYS = 0.2  # elasticity: startup ends below; twice in flight for a seventh more work
ROUND_LEAST, ROUND_MOST = 8.0, 64.0  # answers sent under the limit that a decision in cruise needs: half of it
ABOVE, MORE = 1.03, 1.5  # where the limit belongs, from the knee: no slot is to idle between two exchanges
STAYS = 0.03  # a move smaller than this is noise
FARTHEST = 1.3  # one move in cruise, up or down
ELASTIC = 0.1  # work/s must grow by so much of what in flight grows, or growing buys latency alone
AGES_S = 60.0  # what a level says is soon doubted: early answers are short, and servers change
LOOK_UP, LOOK_DOWN = 1.25, 1.12  # how far it looks from where it settled
HOLD_LEAST, HOLD_GROWS, HOLD_MOST = 3.0, 1.5, 16.0  # rounds between two looks
CUT_LEAST, CUT_MOST = 0.92, 0.5  # a cut that is noticed, and one that a wrong guess survives
REJECTED_CUT, TIMEOUT_CUT, AFTER_OUTAGE = 0.8, 0.8, 0.5
# Of the best rate, for the answers that do come: in a collapse they are slow as well; where long ones are under way,
# few come, but in time.
SLOW = 0.75
HOLD_ROUNDTRIPS = 5.0  # a ceiling stands at least so long
OUTAGE_LEAST, OUTAGE_SHARE = 3, 0.5  # failures in a row, and of the limit


@dataclass(slots=True)
class RegressState:
    """Everything worth handing over, JSON-able. elapsed_s: the law's clock.

    hold: rounds between two looks; held: rounds since the last. looks_up: whether the last went up. failed: attempts in
    a row. before: the limit that an outage ended, 0 without one.
    """

    limit: float
    epoch: int = 0
    mode: Mode = "first"
    elapsed_s: float = 0.0
    hold: float = HOLD_LEAST
    held: int = 0
    looks_up: bool = True
    failed: int = 0
    before: float = 0.0
    ceiling: Ceiling = field(default_factory=Ceiling)
    survey: SurveyState = field(default_factory=SurveyState)


class RegressLaw:
    """Steer to the knee of work per second against in flight.

    startup    limit = 2 * level of the last answers while work/s grow with it; ends where they do not
    cruise     every half limit of answers (8 to 64) sent under it: 1.03 * knee + 1.5, at most 30 % away
    collapse   half of what should come back in the time of an answer does not: the best level below, at most half off

    After REGRESS (notes/control.md section 3); differs: the queue is told from throughput by level instead of from the
    intercept, which is blind to a server without a queue, and answers are booked at the level they lived at.
    """

    def __init__(self, bounds: Bounds, *, state: RegressState | None = None) -> None:
        self.bounds = bounds
        self.state = state if state is not None else RegressState(min(bounds.start, FIRST_MOST))
        self.state.limit = bounds.clamp(self.state.limit)
        self._survey = Survey(self.state.survey, ages_s=AGES_S)
        self._pending: list[Observation] = []
        self._last_now: float | None = None
        self._in_flight = self._peak = 0
        self._round = 0
        self._moved_at = 0.0
        self._collapsed_at: float | None = None  # while it drains
        self._fresh = 0  # answers sent since the last cut
        self._is_armed = True  # work has come back as it should since the last collapse

    def observe(self, observation: Observation) -> None:
        self._pending.append(observation)

    def decide(self, *, now: float) -> LimitChange | None:
        self.state.elapsed_s += max(now - self._last_now, 0.0) if self._last_now is not None else 0.0
        self._last_now = now
        if not self._pending:
            return None
        pending, self._pending = self._pending, []
        samples = [sample for observation in pending for sample in observation.samples]
        self._in_flight = pending[-1].in_flight
        self._peak = max(max(o.in_flight, o.in_flight_peak) for o in pending)
        self._survey.note(self._in_flight, at=self.state.elapsed_s)
        answers = [sample for sample in samples if is_answer(sample)]
        for sample in answers:
            self._take(sample)
        return self._steer(samples, has_answers=bool(answers))

    def _steer(self, samples: Sequence[Sample], *, has_answers: bool) -> LimitChange | None:
        if (change := self._judge_outage(samples, has_answers=has_answers)) or self.state.mode == "outage":
            return change
        if refused := [s for s in samples if _is_cutting(s) and s.epoch >= self.state.epoch]:
            return self._cut_refused(refused)
        if self._collapsed_at is not None:
            return self._drain()
        if self._is_collapse():
            return self._cut_collapse()
        if self.state.mode == "first":
            return self._start()
        if not has_answers or self._peak < BINDS * math.floor(self.state.limit):
            return None
        return self._ramp() if self.state.mode == "startup" else self._cruise()

    def _take(self, sample: Sample) -> None:
        self._survey.take(sample, at=self.state.elapsed_s)
        self._fresh += sample.epoch == self.state.epoch
        self._round += sample.limit == math.floor(self.state.limit) and sample.epoch == self.state.epoch

    def _wanted(self) -> float:
        """Where the limit belongs by all that is known."""
        found = self._survey.find(at=self.state.elapsed_s)
        if found is None:
            return self.state.limit
        return min(_target(found.curve, found.top), max(found.most, self.state.limit))

    # --- growth, and what settles it ---

    def _start(self) -> LimitChange | None:
        if self._survey.answers < FIRST_ANSWERS or self._peak < BINDS * math.floor(self.state.limit):
            return None
        self.state.mode = "startup"
        return self._grow(self.bounds.start, "startup")

    def _ramp(self) -> LimitChange | None:
        """Startup: go as far as elasticity says, from the level at which the last answers lived."""
        limit = self.state.limit
        count = round(min(max(LOOK_SHARE * limit, LOOK_LEAST), LOOK_MOST))
        if self._survey.answers < count:
            return None
        look = self._survey.look(count)
        elasticity, error = self._elasticity(look)
        if elasticity + error < PAYS:
            self.state.mode = "cruise"
            return self._move(min(max(self._wanted(), CUT_MOST * limit), limit), "queue")
        target = look.in_flight * (1.0 + RAMP * min(max(elasticity, 0.3), 1.0))
        return self._grow(target, "startup") if target >= RAMP_STEP * limit else None

    def _elasticity(self, look: Level) -> tuple[float, float]:
        """Return it between what is known a little lower and this level, and one standard deviation of it."""
        lower = [level for level in self._survey.known() if level.in_flight <= look.in_flight / APART]
        if not lower:
            return UNKNOWN, 0.0
        near = pooled([level for level in lower if level.in_flight >= look.in_flight / NEAR] or lower[-1:])
        apart = math.log(look.in_flight / near.in_flight)
        return math.log(look.rate / near.rate) / apart, math.hypot(look.error, near.error) / apart

    def _cruise(self) -> LimitChange | None:
        state = self.state
        needed = min(max(state.limit / 2, ROUND_LEAST), ROUND_MOST)
        if self._round < needed or state.elapsed_s - self._moved_at < self._survey.rtt_s:
            return None
        self._round = 0
        state.ceiling.disprove(self._survey.look(1).in_flight)
        target = min(max(self._wanted(), state.limit / FARTHEST), state.limit * FARTHEST)
        if abs(target / state.limit - 1.0) > STAYS:
            state.hold, state.held = max(state.hold / HOLD_GROWS, HOLD_LEAST), 0
            return self._go(target)
        state.held += 1
        return self._look_around() if state.held >= state.hold else None

    def _look_around(self) -> LimitChange | None:
        """Learn what is above and below where it settled, in turn; less often the longer it stays settled."""
        state = self.state
        state.hold, state.held = min(state.hold * HOLD_GROWS, HOLD_MOST), 0
        state.looks_up = not state.looks_up
        limit = state.limit
        if state.looks_up:
            found = self._survey.find(at=state.elapsed_s)
            most = found.most if found is not None else math.inf
            return self._go(max(min(max(limit * LOOK_UP, limit + 1.0), most), limit))
        return self._go(min(limit / LOOK_DOWN, limit - 1.0))

    def _go(self, target: float) -> LimitChange | None:
        return self._grow(target, "grow") if target > self.state.limit else self._move(target, "queue")

    def _grow(self, target: float, reason: str) -> LimitChange | None:
        return self._move(max(min(target, self.state.ceiling.bound(self.state.elapsed_s)), self.state.limit), reason)

    # --- cuts ---

    def _is_collapse(self) -> bool:
        """Work fails to come back at the rate that the least in flight of late is known for."""
        if self._fresh < LOOK_LEAST:
            return False  # what comes back was slowed by what was cut
        now = self.state.elapsed_s
        if not self._survey.is_short(at=now):
            self._is_armed = True
            return False
        if not self._is_armed:
            self.state.ceiling.doubt()  # the cut mended nothing: it was not the level
            return False
        look = self._survey.look(LOOK_LEAST)
        return look.rate * (1.0 + look.error) < SLOW * self._survey.rate_of_late(at=now)

    def _cut_collapse(self) -> LimitChange | None:
        level = min(float(self._in_flight), self.state.limit)
        self._note_ceiling(level)
        self._collapsed_at, self._is_armed = self.state.elapsed_s, False
        return self._cut(self._survey.best_below(level) or 0.0, "collapse")

    def _drain(self) -> LimitChange | None:
        """After a collapse no more is cut; where the work flows again before the limit is reached, it stays."""
        state, since = self.state, self._collapsed_at
        assert since is not None
        is_back = self._survey.is_back(state.limit, since=since, at=state.elapsed_s)
        if self._in_flight > state.limit and not is_back:
            return None
        self._collapsed_at, self._round = None, 0
        # it flowed since the first of the answers that told so
        return self._grow(self._in_flight + BACK_ANSWERS / 2, "grow") if self._in_flight > state.limit else None

    def _cut_refused(self, refused: Sequence[Sample]) -> LimitChange | None:
        if not any(sample.outcome is Outcome.DROPPED for sample in refused):
            return self._cut(TIMEOUT_CUT * self.state.limit, "timeout")
        level = min(float(max(sample.in_flight_at_send for sample in refused)) or self.state.limit, self.state.limit)
        self._note_ceiling(level)
        return self._cut(REJECTED_CUT * level, "rejected")

    def _note_ceiling(self, level: float) -> None:
        """Remember it; met again a little higher it is where it was."""
        ceiling, old = self.state.ceiling, self.state.ceiling.level
        if old is not None and old < level < old * (1.0 + SAME):
            level = old
        ceiling.note(level, at=self.state.elapsed_s)
        ceiling.hold_s = max(ceiling.hold_s, HOLD_ROUNDTRIPS * self._survey.rtt_s)

    def _cut(self, target: float, reason: str) -> LimitChange | None:
        self.state.mode = "cruise"
        return self._move(max(min(target, CUT_LEAST * self.state.limit), CUT_MOST * self.state.limit), reason)

    # --- outage ---

    def _judge_outage(self, samples: Sequence[Sample], *, has_answers: bool) -> LimitChange | None:
        """Everything fails, and not because of one item: wait at the floor; the first answer ends it."""
        state = self.state
        if has_answers:
            state.failed = 0
            return self._end_outage() if state.mode == "outage" else None
        state.failed += sum(sample.kind in ILL for sample in samples)
        if state.mode == "outage" or state.failed < max(OUTAGE_LEAST, OUTAGE_SHARE * state.limit):
            return None
        state.mode, state.before = "outage", state.limit
        return self._move(self.bounds.min_limit, "outage")

    def _end_outage(self) -> LimitChange | None:
        state = self.state
        target, state.mode, state.before = max(AFTER_OUTAGE * state.before, state.limit), "startup", 0.0
        self._collapsed_at = None
        return self._move(target, "outage")

    def _move(self, target: float, reason: str) -> LimitChange | None:
        old, self.state.limit = self.state.limit, self.bounds.clamp(target)
        self._round, self._moved_at = 0, self.state.elapsed_s
        if self.state.limit < old:
            self.state.epoch += 1
            self._fresh = 0
        if self.state.limit == old:
            return None
        return LimitChange(old, self.state.limit, reason, Evidence(samples=self._fresh, state=self.state.mode))


def _target(curve: Curve, top: float) -> float:
    """Return where the limit belongs by this curve; top: the largest level it was made of."""
    if curve.knee is not None:
        # with no level left of it the knee lies lower than all that was tried
        return curve.knee / FARTHEST if curve.is_saturated else ABOVE * curve.knee + MORE
    elasticity = curve.elasticity(top)
    if elasticity < ELASTIC:
        return curve.at_elasticity(ELASTIC)
    return top * (1.0 + (FARTHEST - 1.0) * min(elasticity + 0.2, 1.0))


def _is_cutting(sample: Sample) -> bool:
    return sample.outcome is Outcome.DROPPED or sample.kind == "timeout"
