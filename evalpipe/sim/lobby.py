"""Who is inside the simulated server: the count that arrivals find, and the two ledger lines of each request."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

from evalpipe.sim.ledger import Arrival, Departure, LedgerWriter
from evalpipe.sim.wire import Trace


class Lobby:
    """Counts the requests inside and writes the ledger, if there is one."""

    def __init__(self, ledger: LedgerWriter | None) -> None:
        self._ledger = ledger
        self.inside = 0

    def enter(self, visit_id: str, trace: Trace | None) -> Visit:
        arrival = Arrival(
            id=visit_id,
            t=time.monotonic(),
            run=trace.run if trace else None,
            item=trace.item if trace else None,
            repeat=trace.repeat if trace else None,
            generation=trace.generation if trace else None,
            attempt=trace.attempt if trace else None,
            epoch=trace.epoch if trace else None,
            limit=trace.limit if trace else None,
            in_flight=self.inside,
            status=0,
        )
        self.inside += 1
        return Visit(self, arrival)

    def write(self, arrival: Arrival) -> None:
        if self._ledger is not None:
            self._ledger.arrive(arrival)

    def exit(self, departure: Departure) -> None:
        self.inside -= 1
        if self._ledger is not None:
            self._ledger.done(departure)


class Visit:
    """One request between the doors. `judge` once, as soon as its fate at the door is known, then `leave`."""

    def __init__(self, lobby: Lobby, arrival: Arrival) -> None:
        self.id = arrival.id
        self._lobby = lobby
        self._arrival = arrival
        self._is_inside = True

    def judge(self, status: int, *, fault: str = "") -> None:
        self._lobby.write(replace(self._arrival, status=status, fault=fault))

    def leave(
        self,
        outcome: str,
        *,
        text: str = "",
        correct: bool | None = None,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """Go out; later calls change nothing.

        Called before the last byte is sent: whoever reads it may send the next request at once and must not find this
        one inside. text: the whole answer, when completed.
        """
        if not self._is_inside:
            return
        self._is_inside = False
        digest = hashlib.sha256(text.encode()).hexdigest() if outcome == "completed" else ""
        self._lobby.exit(Departure(self.id, time.monotonic(), outcome, digest, correct, prompt_tokens, output_tokens))
