"""The server's own append-only record of what it was asked and what it answered: the outside witness of tests.

JSONL, two events a request: "arrive" as soon as its fate at the door is known, "done" when it left. Each line is one
write to a file opened for appending, so a killed server loses at most the line it was writing. Instants `t` are seconds
of the machine's monotonic clock: comparable between servers on one host until it restarts.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson


class LedgerKey(NamedTuple):
    """What a request asked for, from its X-Evalpipe header."""

    item: str
    repeat: int
    generation: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request at the door.

    run to limit: from the X-Evalpipe header, None without one. in_flight: requests found inside, itself excluded.
    status: HTTP status it will start with. fault: the misbehaviour chosen for it, "" if none.
    """

    id: str
    t: float
    run: str | None
    item: str | None
    repeat: int | None
    generation: int | None
    attempt: int | None
    epoch: int | None
    limit: int | None
    in_flight: int
    status: int
    fault: str = ""

    @property
    def key(self) -> LedgerKey | None:
        if self.item is None or self.repeat is None or self.generation is None:
            return None
        return LedgerKey(self.item, self.repeat, self.generation)


@dataclass(frozen=True, slots=True)
class Departure:
    """How a request ended.

    outcome: completed, cut (a fault broke it off), cancelled (the client went away), rejected, fault.
    text_sha256: of the whole answer, "" unless completed. correct: None when the server does not know the item.
    """

    id: str
    t: float
    outcome: str
    text_sha256: str = ""
    correct: bool | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0


_NAMES = {kind: tuple(f.name for f in fields(kind)) for kind in (Arrival, Departure)}


class LedgerWriter:
    """Appends to the file; goes on behind what is there, a torn last line closed off."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if _is_torn(Path(path)):
            os.write(self._fd, b"\n")

    def arrive(self, arrival: Arrival) -> None:
        self._append("arrive", arrival)

    def done(self, departure: Departure) -> None:
        self._append("done", departure)

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, event: str, record: Arrival | Departure) -> None:
        fields_of = {name: getattr(record, name) for name in _NAMES[type(record)]}
        os.write(self._fd, orjson.dumps({"event": event, **fields_of}) + b"\n")


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a ledger file says. torn_lines: lines that could not be read (a killed server leaves at most one)."""

    arrivals: tuple[Arrival, ...]
    departures: dict[str, Departure]
    torn_lines: int = 0

    def answers(self) -> dict[LedgerKey, list[tuple[str, bool | None]]]:
        """Return (sha256 of the text, correct) of each completed answer, by key, in order of arrival."""
        found: dict[LedgerKey, list[tuple[str, bool | None]]] = defaultdict(list)
        for key, departure in self._departed():
            if departure.outcome == "completed":
                found[key].append((departure.text_sha256, departure.correct))
        return dict(found)

    def paid(self) -> Counter[LedgerKey]:
        """Count by key the attempts the server spent tokens on: completed, or broken off after the first token."""
        return Counter(key for key, departure in self._departed() if departure.output_tokens > 0)

    @property
    def high_water(self) -> int:
        """Most requests inside at once, counted at arrivals that were let in."""
        return max((a.in_flight + 1 for a in self.arrivals if a.status == 200), default=0)

    def limit_violations(self, *, window_s: float = 1.0) -> list[Arrival]:
        """Return the arrivals that found at least as many requests inside as the limit allowed (I4).

        The limit is the largest stamped on arrivals of the last window_s seconds, itself included: after a cut a client
        has that long to hear of it. Once requests of a newer epoch (a cut) have come for longer than the window, stamps
        of older epochs justify nothing, their own request neither. Arrivals without a stamped limit are not judged.
        """
        recent: deque[Arrival] = deque()
        first_seen: dict[int, float] = {}
        late = []
        for arrival in (a for a in self.arrivals if a.limit is not None):
            first_seen.setdefault(arrival.epoch or 0, arrival.t)
            recent.append(arrival)
            while recent[0].t < arrival.t - window_s:
                recent.popleft()
            heard = max((epoch for epoch, t in first_seen.items() if t < arrival.t - window_s), default=0)
            limits = [a.limit for a in recent if a.limit is not None and (a.epoch or 0) >= heard]
            if arrival.in_flight >= max(limits, default=0):
                late.append(arrival)
        return late

    def _departed(self) -> Iterator[tuple[LedgerKey, Departure]]:
        for arrival in self.arrivals:
            departure = self.departures.get(arrival.id)
            if departure is not None and arrival.key is not None:
                yield arrival.key, departure


def read_ledger(path: str | Path, *, run: str | None = None) -> Ledger:
    """Read a ledger, also one that is being written. run: only that run's requests, None for all."""
    arrivals: list[Arrival] = []
    departures: dict[str, Departure] = {}
    torn = 0
    for line in Path(path).read_bytes().splitlines():
        if not line:
            continue
        try:
            record = orjson.loads(line)
            if record["event"] == "arrive":
                arrivals.append(_parse(Arrival, record))
            else:
                departures[record["id"]] = _parse(Departure, record)
        except (ValueError, KeyError, TypeError):
            torn += 1
    if run is not None:
        arrivals = [a for a in arrivals if a.run == run]
        ids = {a.id for a in arrivals}
        departures = {key: d for key, d in departures.items() if key in ids}
    return Ledger(tuple(sorted(arrivals, key=lambda a: a.t)), departures, torn)


_Record = TypeVar("_Record", Arrival, Departure)


def _parse(kind: type[_Record], record: dict[str, Any]) -> _Record:
    return kind(**{name: record[name] for name in _NAMES[kind]})
