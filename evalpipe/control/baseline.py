"""First-token baselines: how soon a server that is not busy begins to answer, by the length of the prompt.

The controller learns them and sends them with each lease; a worker counts what is overdue against them. So the evidence
of a queue needs no answer to finish, and no clock of two hosts is compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from evalpipe.control.observation import FirstTokens, Sample

BUCKETS, BUCKET_S = 10, 30.0  # ageing minima after LEDBAT (RFC 6817): a baseline forgets in five minutes
UNKNOWN_S = 2.0  # before any first token was seen
FACTOR, MARGIN_S = 2.0, 0.1  # overdue is twice the baseline, and at least a tenth of a second more than it


def bin_of(prompt_tokens: int) -> int:
    """Return floor(log2 prompt_tokens); 0 for an empty prompt."""
    return max(prompt_tokens, 1).bit_length() - 1


@dataclass(slots=True)
class BaselineState:
    """What the baselines remember, JSON-able. minima: [bin, bucket number, seconds]; buckets count elapsed_s."""

    minima: list[list[float]] = field(default_factory=list)
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
        self.state.elapsed_s += max(now - self._now, 0.0) if self._now is not None else 0.0
        self._now = now
        for first in first_tokens:
            self._lower(first.bin, first.least_s)
        for sample in samples:
            if sample.ttft_s is not None and sample.prompt_tokens > 0:
                self._lower(bin_of(sample.prompt_tokens), sample.ttft_s)
        if (bucket := self.state.elapsed_s // BUCKET_S) != self._bucket:
            self._bucket = bucket
            self.state.minima = [entry for entry in self.state.minima if entry[1] > bucket - BUCKETS]
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
            self._table = tuple((key, max(FACTOR * base_s, base_s + MARGIN_S)) for key, base_s in known)
        return self._table

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
