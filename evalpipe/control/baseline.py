"""First-token baselines: how soon a server that is not busy begins to answer, by the length of the prompt.

The controller learns them and sends them with each lease; a worker counts what is overdue against them. So the evidence
of a queue needs no answer to finish, and no clock of two hosts is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from evalpipe.control.observation import FirstTokens, Sample

BUCKETS, BUCKET_S = 10, 30.0  # ageing minima after LEDBAT (RFC 6817): a baseline forgets in five minutes
UNKNOWN_S = 2.0  # before any first token was seen
FACTOR, MARGIN_S = 2.0, 0.1  # overdue is twice the baseline, and at least a tenth of a second more than it

# First tokens scatter with no queue at all: behind a gateway, across a busy network. How much is told by those of
# requests that found few in flight. A third of the most: a server of one slot, at three, leaves those alone at it.
FEW, ROOMY, ENOUGH, MOST_FACTOR = 1 / 3, 64, 16, 10.0
ON_TIME = 0.95  # of those are to be on time
FORGET_S = BUCKETS * BUCKET_S


def bin_of(prompt_tokens: int) -> int:
    """Return floor(log2 prompt_tokens); 0 for an empty prompt."""
    return max(prompt_tokens, 1).bit_length() - 1


@dataclass(slots=True)
class BaselineState:
    """What the baselines remember, JSON-able. minima: [bin, bucket number, seconds]; buckets count elapsed_s.

    most: in flight, ageing. roomy: [in flight, bin, seconds, elapsed_s then] of the first tokens that found fewest out.
    """

    minima: list[list[float]] = field(default_factory=list)
    most: float = 0.0
    roomy: list[list[float]] = field(default_factory=list)
    elapsed_s: float = 0.0


class Baselines:
    """Least first-token time of the last five minutes, for each bin of prompt lengths."""

    def __init__(self, state: BaselineState | None = None) -> None:
        self.state = state if state is not None else BaselineState()
        self._now: float | None = None
        self._bucket = 0.0
        self._table: tuple[tuple[int, float], ...] = ()

    def observe(self, first_tokens: Iterable[FirstTokens], samples: Iterable[Sample], *, now: float) -> None:
        """Take in what arrived since the last call. A finished sample tells its first token once more: no harm."""
        passed_s = max(now - self._now, 0.0) if self._now is not None else 0.0
        self.state.elapsed_s += passed_s
        self.state.most *= max(1.0 - passed_s / FORGET_S, 0.0)
        self._now = now
        for first in first_tokens:
            self._lower(first.bin, first.least_s)
        for sample in samples:
            if sample.ttft_s is not None and sample.prompt_tokens > 0:
                self._lower(bin_of(sample.prompt_tokens), sample.ttft_s)
                self._note_roomy(bin_of(sample.prompt_tokens), sample.ttft_s, sample.in_flight_at_send)
        if (bucket := self.state.elapsed_s // BUCKET_S) != self._bucket:
            self._bucket = bucket
            self.state.minima = [entry for entry in self.state.minima if entry[1] > bucket - BUCKETS]
            self.state.roomy = [entry for entry in self.state.roomy if entry[3] > self.state.elapsed_s - FORGET_S]
            self._table = ()

    def base_s(self) -> dict[int, float]:
        """Return the baseline of each bin that was seen, in seconds."""
        least: dict[int, float] = {}
        for key, _, seconds in self.state.minima:
            least[int(key)] = min(seconds, least.get(int(key), seconds))
        return least

    @property
    def overdue(self) -> tuple[tuple[int, float], ...]:
        """Return (bin, seconds after which a first token is overdue), by bin; what a lease carries."""
        if not self._table:
            known = sorted(self.base_s().items())
            factor = self._factor(dict(known))
            self._table = tuple((key, max(factor * base_s, base_s + MARGIN_S)) for key, base_s in known)
        return self._table

    def _factor(self, base_s: Mapping[int, float]) -> float:
        """Return after how many times its baseline a first token is overdue: 2, or as many as it takes by itself."""
        few = FEW * self.state.most
        roomy = [(key, seconds) for in_flight, key, seconds, _ in self.state.roomy if in_flight <= few]
        ratios = sorted(seconds / base_s[int(key)] for key, seconds in roomy if int(key) in base_s)
        if len(ratios) < ENOUGH:
            return FACTOR
        return min(max(ratios[int(ON_TIME * len(ratios))], FACTOR), MOST_FACTOR)

    def _note_roomy(self, key: int, seconds: float, in_flight: int) -> None:
        """Keep those that found fewest, the newer of equals."""
        state = self.state
        if in_flight > state.most:
            state.most, self._table = in_flight, ()
        if in_flight <= FEW * state.most:
            self._table = ()
        state.roomy.append([in_flight, key, seconds, state.elapsed_s])
        if len(state.roomy) > ROOMY:
            state.roomy.remove(max(state.roomy, key=lambda entry: entry[0]))

    def _lower(self, key: int, seconds: float) -> None:
        bucket = self.state.elapsed_s // BUCKET_S
        for entry in self.state.minima:
            if entry[0] == key and entry[1] == bucket:
                if seconds < entry[2]:
                    entry[2], self._table = seconds, ()
                return
        self.state.minima.append([key, bucket, seconds])
        self._table = ()


class Deadlines:
    """The worker's side: after how long is the first token to a prompt overdue? Built from a lease's table."""

    def __init__(self, table: tuple[tuple[int, float], ...] = ()) -> None:
        self.table = table
        self._known = dict(table)

    def after_s(self, key: int) -> float:
        """Return seconds for a bin. One not seen yet: the nearest, twice as long for each bin that it is larger."""
        seconds = self._known.get(key)
        if seconds is None:
            seconds = self._known[key] = self._guess(key)
        return seconds

    def _guess(self, key: int) -> float:
        if not self.table:
            return UNKNOWN_S
        near, seconds = min(self.table, key=lambda entry: (abs(entry[0] - key), entry[0]))
        return seconds * 2.0 ** max(key - near, 0)
