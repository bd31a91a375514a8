"""`progress`: keep work that makes no progress near zero, and never stay where more in flight deliver fewer tokens.

Two signals without delay, each blind where the other sees: what is stuck (overdue first tokens, stalled streams) is the
server's queue in requests; a shortfall of tokens against the server's own pace (control/shortfall.py) is a collapse
that no queue announces. Either may cut. Neither needs a latency, nor an answer to finish.

    startup   the limit grows by a factor once the first tokens of the last step are back
    cruise    it grows while little is stuck, faster the longer that lasts, and is cut to what really runs
    stall     nothing flows at all: it stays where it is until something does
    outage    attempts fail as soon as they are sent: it waits at the floor for the first answer
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from evalpipe.control.ceiling import Ceiling
from evalpipe.control.law import Bounds, Evidence, LimitChange
from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.control.shortfall import Shortfall, ShortfallState
from evalpipe.control.window import Beat, Window, beat_of

Mode = Literal["startup", "cruise", "stall", "outage"]

BEAT_S, LONGEST_BEAT_S = 0.1, 1.0  # decisions: the controller's tick, and the longest that growth believes
QUEUE_S, LONG_S = 1.0, 2.0
# Wanted: so many stuck. Absolute, because shares of a limit are not fair between two clients (notes, Jain 0.55); a
# share below 150 in flight, so that a small server has a short queue. On the smallest one that is always stuck is a
# queue, and one that is so half of the time is none.
STUCK_SHARE, STUCK_LEAST, STUCK_MOST = 0.02, 0.6, 3.0
CUT_ABOVE, GROW_BELOW, RAMP_BELOW = 1.3, 0.6, 0.5  # of what is wanted
SEEN_LEAST = 2  # of a sample: one stream that is stuck says that it is, not that a tenth of all are
# If most first tokens are on time the queue stands before some of several servers only, and a cut would idle the rest.
ON_TIME = 0.5
CUT_LEAST, CUT_MOST = 0.92, 0.5  # a cut that is noticed, also by a neighbour; and one that a wrong guess survives
# Growth in startup. A collapse is seen one or two ticks late, so growth over 0.2 s is what may be overshot: 22 %.
RAMP_PER_S, RAMP_MOST, ROUND_S = 1.0, 1.25, 0.2  # most: less than from the edge of a cliff to its rejections (27 %)
SMALL_STEP, SMALL_MOST = 8.0, 2.0  # up to 8 more at a time are no burst, but no more than twice what proved right
CLEAN_DOUBLES_S, CLEAN_DOUBLINGS, GROW_MOST_PER_S = 3.0, 5.0, 0.2  # growth in cruise doubles, up to 20 % a second
ELASTIC = 0.06  # tokens/s must grow by so much of what in flight grows, or growing buys latency alone
BINDS, FILLED = 0.8, 0.9  # of the limit in flight: below, it is not in use; from there, a step of startup is complete
REJECTED_CUT, TIMEOUT_CUT, AFTER_OUTAGE = 0.8, 0.8, 0.5
# A cut for a collapse that did not help was to a level that never ran well: the next is deeper. After three that did
# not, half of the level is no better than all of it.
UNHELPED, DEEPER_CUT = 3, 0.7
SUSPECT_LEFT, RESTORED = 0.97, 0.96  # of the level at which a collapse was seen
ILL_SHARE = 0.6  # of the attempts of the last two seconds, with no answer among them
STALL_LEAST_S, STALL_GAPS, GAP_MEMORY_S = 2.0, 4.0, 300.0


@dataclass(slots=True)
class ProgressState:
    """Everything worth handing over, JSON-able. elapsed_s: seconds of ticks so far, the clock of what is in it.

    clean_s: how long cruise has grown without a hold. good: most in flight at which tokens came as they should.
    before: the limit that a stall or an outage ended, 0 without one. gap_s: longest silence that was none.
    has_streams: a first token was seen on its own, so what is stuck can be told.
    """

    limit: float
    epoch: int = 0
    mode: Mode = "startup"
    elapsed_s: float = 0.0
    clean_s: float = 0.0
    good: float = 0.0
    before: float = 0.0
    gap_s: float = 0.0
    has_streams: bool = False
    ceiling: Ceiling = field(default_factory=Ceiling)
    shortfall: ShortfallState = field(default_factory=ShortfallState)


class ProgressLaw:
    """Steer what is in flight to what really runs and a few more.

    queue      stuck > 1.3 wanted at each tick of a second: limit = running + wanted, at least 8 % less
    collapse   tokens fall short of the server's pace: limit = what last ran well, a ceiling above it
    growth     startup by up to a quarter at each step (by eight while that is more); cruise by max(1, sqrt(limit) / 3)
               a second, doubling while clean

    After KNEE (notes/control.md section 3); differs: a shortfall cuts, first tokens clock the startup, small servers
    get a short queue, a cut that the level did not deserve is taken back, one that did not help is followed by a deeper
    one and then by none. Where no stream can be seen it adds one request for each limit's worth of answers, and reacts
    to rejections, timeouts and outages alone.
    """

    def __init__(self, bounds: Bounds, *, state: ProgressState | None = None) -> None:
        self.bounds = bounds
        self.state = state if state is not None else ProgressState(limit=bounds.start)
        self.state.limit = bounds.clamp(self.state.limit)
        self._pending: list[Observation] = []
        self._beat_at: float | None = None
        self._second, self._long = Window(QUEUE_S), Window(LONG_S)
        self._shortfall = Shortfall(self.state.shortfall)
        self._is_draining = False  # after a cut, until no more are out than it allows: one episode, one cut
        self._suspect = 0.0  # in flight when a collapse was seen, while it drains
        self._unhelped = 0  # cuts for a collapse since tokens last came as they should
        self._awaited: float | None = None  # first tokens of the last step; None until the step is filled
        self._since_step_s = 0.0
        self._silent_s = 0.0

    def observe(self, observation: Observation) -> None:
        self._pending.append(observation)

    def decide(self, *, now: float) -> LimitChange | None:
        self._beat_at = now if self._beat_at is None else self._beat_at
        refused = [s for o in self._pending for s in o.samples if _is_cutting(s) and s.epoch >= self.state.epoch]
        if refused and self.state.mode != "outage":
            return self._cut_refused(refused)
        seconds = now - self._beat_at
        if seconds < BEAT_S * 0.99 or not self._pending:
            return None
        beat = beat_of(self._pending, seconds=seconds)
        self._pending, self._beat_at = [], now
        self._take(beat)
        return self._steer(beat)

    def _take(self, beat: Beat) -> None:
        state = self.state
        state.elapsed_s += beat.seconds
        state.has_streams = state.has_streams or beat.begun > 0
        self._since_step_s += beat.seconds
        self._second.add(beat)
        self._long.add(beat)
        self._shortfall.observe(beat, may_adapt=not self._is_draining)
        if self._shortfall.is_efficient:
            self._unhelped = 0
            level = self._shortfall.look.in_flight
            state.good = max(state.good, level) if state.good <= 1.1 * state.limit else level
            if self._second.is_full:
                state.ceiling.disprove(self._second.in_flight)

    def _steer(self, beat: Beat) -> LimitChange | None:
        if (change := self._judge_flow(beat)) is not None or self.state.mode in ("stall", "outage"):
            return change
        if self._is_draining:
            return self._drain(beat)
        if not self.state.has_streams:
            return self._feel(beat)
        if self._is_used(beat) and self._shortfall.is_collapse:
            return self._cut_collapse(beat) if self._unhelped < UNHELPED else self._accept_pace()
        wanted = min(max(STUCK_SHARE * self.state.limit, STUCK_LEAST), STUCK_MOST)
        if self._has_queue(wanted):
            running = self._second.in_flight - self._second.stuck
            return self._cut(running + wanted, "queue")
        if beat.peak < BINDS * math.floor(self.state.limit) or self._shortfall.lost_s > 0:
            return None  # not in use; or tokens are missing, be it by chance
        return self._ramp(beat, wanted) if self.state.mode == "startup" else self._cruise(beat, wanted)

    # --- growth ---

    def _feel(self, beat: Beat) -> LimitChange | None:
        """Without streams to look into: one request more for each limit's worth of answers."""
        is_used = beat.peak >= BINDS * math.floor(self.state.limit)
        return self._grow(self.state.limit + beat.answered / self.state.limit, "grow") if is_used else None

    def _ramp(self, beat: Beat, wanted: float) -> LimitChange | None:
        """Startup: step up once the first tokens of the last step are back and nothing speaks against it."""
        if self._second.seconds > 0.3 and self._second.stuck > RAMP_BELOW * wanted:
            if self._second.is_full and self._second.least_stuck > RAMP_BELOW * wanted:
                self.state.mode = "cruise"
            return None
        if self._shortfall.elasticity <= ELASTIC:
            return None
        if beat.peak < FILLED * math.floor(self.state.limit):
            return None
        self._awaited = beat.waiting if self._awaited is None else self._awaited - beat.begun
        if self._awaited > 0 or self._since_step_s < ROUND_S * 0.99:
            return None
        limit = self.state.limit
        small = min(1.0 + SMALL_STEP / limit, SMALL_MOST)
        factor = max(min(math.exp(RAMP_PER_S * self._since_step_s), RAMP_MOST), small)
        gain = min(2.0 * self._shortfall.elasticity, 1.0)  # half of what was hoped for: half a step
        return self._grow(max(limit * (1.0 + (factor - 1.0) * gain), limit + 1.0), "startup")

    def _cruise(self, beat: Beat, wanted: float) -> LimitChange | None:
        state = self.state
        is_clean = self._second.is_full and self._second.stuck < GROW_BELOW * wanted
        if not is_clean or self._shortfall.elasticity <= ELASTIC:
            state.clean_s = 0.0
            return None
        state.clean_s += beat.seconds
        doublings = min(state.clean_s / CLEAN_DOUBLES_S, CLEAN_DOUBLINGS)
        speed = min(max(1.0, math.sqrt(state.limit) / 3.0) * 2.0**doublings, GROW_MOST_PER_S * state.limit)
        # a tick that came late does not count for all that it lasted: nothing was seen in between
        return self._grow(state.limit + speed * min(beat.seconds, LONGEST_BEAT_S), "grow")

    def _grow(self, target: float, reason: str) -> LimitChange | None:
        self._awaited, self._since_step_s = None, 0.0
        return self._move(max(min(target, self.state.ceiling.bound(self.state.elapsed_s)), self.state.limit), reason)

    # --- cuts ---

    def _has_queue(self, wanted: float) -> bool:
        on_time = self._long.on_time_share
        is_partial = on_time is not None and on_time > ON_TIME and not any(beat.stalled for beat in self._long)
        is_standing = self._second.is_full and self._second.least_stuck > CUT_ABOVE * wanted
        is_chance = self._second.is_sampled and self._second.least_seen_stuck < SEEN_LEAST
        return is_standing and not is_chance and not is_partial

    def _is_used(self, beat: Beat) -> bool:
        """The limit binds, or in flight is on its way to it; a run that ends delivers less and means nothing by it."""
        return beat.peak >= BINDS * math.floor(self.state.limit) or self._second.is_growing

    def _cut_collapse(self, beat: Beat) -> LimitChange | None:
        state = self.state
        level = min(float(beat.in_flight), state.limit)
        state.ceiling.note(level, at=state.elapsed_s)
        most = DEEPER_CUT if self._unhelped else CUT_LEAST
        self._unhelped += 1
        state.good = min(max(state.good, CUT_MOST * state.limit), most * state.limit)
        self._shortfall.forget()
        change = self._cut(state.good, "collapse")
        self._suspect = level
        return change

    def _accept_pace(self) -> LimitChange | None:
        """Cuts did not bring the tokens back, so it was never the level: the server has become slower."""
        self._shortfall.accept()
        self.state.ceiling = Ceiling()
        self._unhelped = 0
        return None

    def _cut_refused(self, refused: Sequence[Sample]) -> LimitChange | None:
        state = self.state
        is_rejected = any(sample.outcome is Outcome.DROPPED for sample in refused)
        if not is_rejected:
            return self._cut(TIMEOUT_CUT * state.limit, "timeout")
        level = min(float(max(sample.in_flight_at_send for sample in refused)) or state.limit, state.limit)
        state.ceiling.note(level, at=state.elapsed_s)
        return self._cut(min(REJECTED_CUT * level, max(state.good, CUT_MOST * level)), "rejected")

    def _cut(self, target: float, reason: str) -> LimitChange | None:
        state = self.state
        state.mode, state.clean_s = "cruise", 0.0
        state.epoch += 1
        self._is_draining, self._suspect = True, 0.0
        self._second.clear()
        return self._move(max(min(target, CUT_LEAST * state.limit), CUT_MOST * state.limit), reason)

    def _drain(self, beat: Beat) -> LimitChange | None:
        if self._suspect and beat.in_flight >= SUSPECT_LEFT * self._suspect and self._shortfall.is_mended:
            return self._take_back()
        if beat.in_flight <= math.floor(self.state.limit):
            self._is_draining = False
            self._second.clear()
            self._shortfall.forget()
        return None

    def _take_back(self) -> LimitChange | None:
        """The collapse mended while as many were out as when it began: it was a dip, and may not be the level's.

        The ceiling stays, for a short while: on an edge as sharp as that one request less mends it too.
        """
        target, self._suspect, self._is_draining = RESTORED * self._suspect, 0.0, False
        self._shortfall.note_false_alarm()
        self.state.ceiling.doubt()
        self.state.good = target
        return self._grow(target, "grow")

    # --- stall and outage ---

    def _judge_flow(self, beat: Beat) -> LimitChange | None:
        """Enter and leave the states in which nothing comes back."""
        state = self.state
        if state.mode == "outage":
            return self._end_outage() if beat.answered or beat.tokens else None
        if self._long.ill_share > ILL_SHARE and not any(b.answered or b.tokens for b in self._long):
            state.before, state.mode = max(state.before, state.limit), "outage"
            state.epoch += 1
            return self._move(self.bounds.min_limit, "outage")
        self._judge_silence(beat)
        return None

    def _end_outage(self) -> LimitChange | None:
        state = self.state
        target, state.mode, state.before = max(AFTER_OUTAGE * state.before, state.limit), "startup", 0.0
        state.ceiling = Ceiling()  # what was rejected meanwhile says nothing about a level
        self._is_draining = False
        self._long.clear()
        self._shortfall.forget()
        return self._grow(target, "outage")

    def _judge_silence(self, beat: Beat) -> None:
        state = self.state
        if beat.is_silent and beat.in_flight > 0:
            self._silent_s += beat.seconds
            if state.has_streams and self._silent_s > max(STALL_LEAST_S, STALL_GAPS * state.gap_s):
                state.mode = "stall"
            return
        if state.mode == "stall":
            state.mode = "cruise"
        elif self._silent_s:
            state.gap_s = max(state.gap_s, self._silent_s)
        state.gap_s *= max(1.0 - beat.seconds / GAP_MEMORY_S, 0.0)
        self._silent_s = 0.0

    def _move(self, target: float, reason: str) -> LimitChange | None:
        old, self.state.limit = self.state.limit, self.bounds.clamp(target)
        if self.state.limit == old:
            return None
        answered = sum(beat.answered for beat in self._second)
        return LimitChange(old, self.state.limit, reason, Evidence(samples=answered, state=self.state.mode))


def _is_cutting(sample: Sample) -> bool:
    return sample.outcome is Outcome.DROPPED or sample.kind == "timeout"
