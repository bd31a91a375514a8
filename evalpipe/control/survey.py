"""What finished answers tell of a server: how much work each was, at which level it lived, what each level gets done.

Laws that see no streams (`regress`) or do not look into them (`gradient`) judge by one curve through all of it. Nothing
here moves a limit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from evalpipe.control.curve import Curve, Point, fit
from evalpipe.control.delivery import Delivery
from evalpipe.control.levels import FLEETING_S, History, Level, Levels
from evalpipe.control.observation import Outcome, Sample
from evalpipe.control.work import WorkModel, WorkState

RTT_LEAST_S = 1e-6  # nothing answers sooner: such a latency was not measured
LOOK_MOST = 32  # answers kept for a look at the newest
REFIT = 8  # answers between two fits of the work model
BAD = 0.8  # of the best rate: a level above it that is worse for sure lies beyond a cliff
AGES_ROUNDTRIPS, AGED = 40.0, 0.1  # what a level says is 10 % less sure each time it ages
REACHED = 1.05  # a level this little above what is in flight was reached


@dataclass(slots=True)
class SurveyState:
    """JSON-able. elapsed_s of the law that owns it is the clock of what is in it."""

    work: WorkState = field(default_factory=WorkState)
    levels: list[Level] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finding:
    """The curve through the levels from `low` to `top`. most: half-way to one known to be bad, infinity without one."""

    curve: Curve
    low: float
    top: float
    most: float


@dataclass(frozen=True, slots=True)
class Answer:
    """in_flight: on average over its life. work: units of the work model. rtt_s: its latency."""

    in_flight: float
    work: float
    rtt_s: float


class Survey:
    """Book answers; all instants are the law's elapsed seconds. Owns its state.

    ages_s: after so long (or 40 round trips, if that is more) what a level says is 10 % less sure.
    """

    def __init__(self, state: SurveyState, *, ages_s: float) -> None:
        self._ages_s = ages_s
        self._model = WorkModel(state.work)
        self._levels = Levels(state.levels)
        self._history, self._delivery = History(), Delivery()
        self._last: deque[Answer] = deque(maxlen=LOOK_MOST)
        self._taken = 0

    @property
    def answers(self) -> int:
        """How many were taken since this process began."""
        return self._taken

    @property
    def rtt_s(self) -> float:
        """Mean latency of the last answers; a second before any."""
        return self._delivery.rtt_s

    def note(self, in_flight: float, *, at: float) -> None:
        """So many are in flight now. Once a tick, before the answers of it are taken."""
        self._history.note(in_flight, now=at)

    def take(self, sample: Sample, *, at: float) -> Answer:
        """Book what `is_answer` and return how it was booked."""
        lived_at = self._history.mean(sample.rtt_s, now=at) if sample.rtt_s > FLEETING_S else sample.in_flight_at_send
        work = self._model.work(sample.prompt_tokens, sample.output_tokens)
        answer = Answer(max(lived_at, 1.0), work, sample.rtt_s)
        self._levels.add(answer.in_flight, work, sample.rtt_s, at=at)
        self._delivery.add(work, sample.rtt_s, at=at)
        self._last.append(answer)
        self._model.learn(sample)
        self._taken += 1
        if self._taken % REFIT == 0:
            self._model.refit()
        return answer

    def look(self, count: int) -> Level:
        """Return the newest answers, at most LOOK_MOST and at least one, as one level."""
        return level_of(list(self._last)[-count:])

    def known(self) -> list[Level]:
        """Return the levels with enough answers, fewest in flight first."""
        return self._levels.known()

    def find(self, *, at: float) -> Finding | None:
        """Draw the curve through the levels up to the first that is bad for sure; None while none is known."""
        known = self.known()
        if not known:
            return None
        best = max(range(len(known)), key=lambda i: known[i].sure_rate)
        bad = (i for i in range(best, len(known)) if self._is_bad(known[i], known[best].sure_rate, at))
        end = next(bad, len(known))
        good = known[:end]
        most = math.sqrt(good[-1].in_flight * known[end].in_flight) if end < len(known) else math.inf
        points = [Point(level.in_flight, level.per_work_s, self._error(level, at)) for level in good]
        return Finding(fit(points), good[0].in_flight, good[-1].in_flight, most)

    def best_rate(self, *, up_to: float) -> float:
        """Return the best work per second that is sure of the levels up to so many in flight; 0 if none is known."""
        return self._levels.best_rate(up_to=REACHED * up_to)

    def best_below(self, in_flight: float) -> float | None:
        """Return the level that gets most done of those clearly below; None if none is known."""
        below = [level for level in self.known() if level.in_flight <= in_flight / REACHED]
        best = max(below, key=lambda level: level.sure_rate, default=None)
        return None if best is None else best.in_flight

    def is_short(self, *, at: float) -> bool:
        """Work fails to come back at the rate that the least in flight of late is known for."""
        return self._delivery.is_short(self.rate_of_late(at=at), now=at)

    def rate_of_late(self, *, at: float) -> float:
        """Return the work per second that is known to come back with as many in flight as were all through of late."""
        in_flight = self._history.least(2.0 * self.rtt_s, now=at)
        return self.best_rate(up_to=in_flight) if in_flight >= 2.0 else 0.0

    def is_back(self, in_flight: float, *, since: float, at: float) -> bool:
        """Work comes back again as it should with so many in flight."""
        return self._delivery.is_back(self.best_rate(up_to=in_flight), since=since, now=at)

    def _is_bad(self, level: Level, best_rate: float, at: float) -> bool:
        return level.rate * (1.0 + self._error(level, at)) < BAD * best_rate

    def _error(self, level: Level, at: float) -> float:
        """How unsure a level is, the older the more."""
        ages_s = max(AGES_ROUNDTRIPS * self.rtt_s, self._ages_s)
        return math.hypot(level.error, AGED * (at - level.at) / ages_s)


def is_answer(sample: Sample) -> bool:
    """Tell a success that was measured."""
    return sample.outcome is Outcome.OK and sample.rtt_s >= RTT_LEAST_S


def level_of(answers: Iterable[Answer]) -> Level:
    """Return these answers, at least one, as one level."""
    level = Level()
    for answer in answers:
        level.add(answer.in_flight, answer.work, answer.rtt_s, at=0.0, memory=1.0)
    return level
