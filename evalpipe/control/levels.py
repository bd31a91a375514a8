"""How much gets done with how many in flight? Told by finished answers alone, with no stream to look into.

Each answer is booked at the mean number in flight over its own life, so that no answer is lost to a change of the
limit, and long ones need not be waited for. By Little's law the work done per second at a level is

    rate = in flight * work / latency

summed over its answers: far steadier than counting answers per second (20 of them tell it within some 5 %).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

STEP = math.log(1.1)  # levels a tenth apart
MEMORY = 0.97  # a level remembers its last 30 answers or so
LEAST = 2.5  # answers (decayed) that make a level known
SPREAD_LEAST = 0.005  # of the squared relative spread: three equal answers do not prove that there is none
FLEETING_S = 0.25  # lives shorter than this lie between two ticks: take what was in flight when it was sent
KEEP_S, PRUNE_AT = 900.0, 12_000  # of the history of in flight; entries, one a tick


class History:
    """In flight over time, to average it over a life. Not kept in a state: it refers to this process's clock."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._area: list[float] = []  # request-seconds up to that instant
        self._in_flight = 0.0

    def note(self, in_flight: float, *, now: float) -> None:
        """So many are in flight now; between two notes it is taken to change evenly."""
        if self._at and now <= self._at[-1]:
            self._in_flight = in_flight
            return
        grown = (now - self._at[-1]) * (self._in_flight + in_flight) / 2 if self._at else 0.0
        self._area.append((self._area[-1] if self._area else 0.0) + grown)
        self._at.append(now)
        self._in_flight = in_flight
        if len(self._at) > PRUNE_AT:
            self._prune(now - KEEP_S)

    def mean(self, span_s: float, *, now: float) -> float:
        """Return the mean over the last span_s seconds, or over what is known of them; needs one note."""
        since = max(now - span_s, self._at[0])
        return (self._area_at(now) - self._area_at(since)) / (now - since) if now > since else self._in_flight

    def least(self, span_s: float, *, now: float) -> float:
        """Return the least mean between two ticks over the last span_s seconds; 0 if less is known."""
        first = bisect_right(self._at, now - span_s)
        if first == 0:
            return 0.0
        at, area = self._at[first - 1 :], self._area[first - 1 :]
        steps = ((area[i] - area[i - 1]) / (at[i] - at[i - 1]) for i in range(1, len(at)))
        return min(steps, default=self._in_flight)

    def _area_at(self, when: float) -> float:
        i = bisect_right(self._at, when)
        if i == 0 or i == len(self._at):
            return self._area[max(i - 1, 0)]
        share = (when - self._at[i - 1]) / (self._at[i] - self._at[i - 1])
        return self._area[i - 1] + share * (self._area[i] - self._area[i - 1])

    def _prune(self, before: float) -> None:
        first = max(bisect_right(self._at, before) - 1, len(self._at) - PRUNE_AT // 2)
        del self._at[:first], self._area[:first]


@dataclass(slots=True)
class Level:
    """Answers given at about one level, older ones counting less. JSON-able.

    key: round(ln(in flight) / STEP). count: of answers. lived: sum of in flight * latency; seconds: of latencies;
    work: in units of the work model; spread: sum of latency^2 / work. at: the law's elapsed seconds when last added to.
    """

    key: int = 0
    count: float = 0.0
    lived: float = 0.0
    seconds: float = 0.0
    work: float = 0.0
    spread: float = 0.0
    at: float = 0.0

    def add(self, in_flight: float, work: float, rtt_s: float, *, at: float, memory: float = MEMORY) -> None:
        self.count = memory * self.count + 1.0
        self.lived = memory * self.lived + in_flight * rtt_s
        self.seconds = memory * self.seconds + rtt_s
        self.work = memory * self.work + work
        self.spread = memory * self.spread + rtt_s * rtt_s / work
        self.at = at

    @property
    def in_flight(self) -> float:
        return self.lived / self.seconds

    @property
    def per_work_s(self) -> float:
        """Seconds a unit of work takes here."""
        return self.seconds / self.work

    @property
    def rate(self) -> float:
        """Units of work done per second here, by Little's law."""
        return self.in_flight / self.per_work_s

    @property
    def error(self) -> float:
        """One standard deviation of per_work_s and of rate, relative."""
        spread = self.spread * self.work / (self.seconds * self.seconds) - 1.0
        return math.sqrt((max(spread, 0.0) + SPREAD_LEAST) / self.count)

    @property
    def sure_rate(self) -> float:
        return self.rate * (1.0 - self.error)


class Levels:
    """What is known of each level. Owns the list, which is part of a law's state."""

    def __init__(self, levels: list[Level]) -> None:
        self._levels = levels
        self._by_key = {level.key: level for level in levels}

    def add(self, in_flight: float, work: float, rtt_s: float, *, at: float) -> None:
        key = round(math.log(in_flight) / STEP)
        level = self._by_key.get(key)
        if level is None:
            level = self._by_key[key] = Level(key)
            self._levels.append(level)
        level.add(in_flight, work, rtt_s, at=at)

    def known(self) -> list[Level]:
        """Return the levels with enough answers, fewest in flight first."""
        enough = (level for level in self._levels if level.count >= LEAST)
        return sorted(enough, key=lambda level: level.in_flight)

    def best_rate(self, *, up_to: float) -> float:
        """Return the best rate that is sure of the levels up to so many in flight; 0 if none is known."""
        reached = (level.sure_rate for level in self.known() if level.in_flight <= up_to)
        return max(reached, default=0.0)


def pooled(levels: Sequence[Level]) -> Level:
    """Return several levels (at least one) as one, at the mean of what was in flight."""
    every = Level(at=max(level.at for level in levels))
    for level in levels:
        every.count += level.count
        every.lived += level.lived
        every.seconds += level.seconds
        every.work += level.work
        every.spread += level.spread
    return every
