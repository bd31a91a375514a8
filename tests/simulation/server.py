"""The model server of the simulation and its ledger: what was asked, what was answered, what was paid.

No HTTP: a worker's `SimSender` talks to it in virtual time. Every answer has a text of its own, so that a stored row
can be traced to the one request it came from.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from simulation.loop import VirtualLoop
from simulation.scheduler import Process, Scheduler

from evalpipe.endpoint.failures import make
from evalpipe.errors import EndpointError
from evalpipe.records import Completion, Request, Status
from evalpipe.runtime.observer import Watch
from evalpipe.sim.ledger import Arrival, Departure, Ledger, LedgerKey

WIRE_S = 0.001
TOKENS = 12
FIRST_TOKEN = 0.3  # of the latency
#: fates that come at once, and those that cost tokens
QUICK, PAID = frozenset({"rate_limited", "server_error", "reset"}), frozenset({"ok", "cut"})


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """latency_s: of the quickest answer; the slowest takes three times that. capacity: requests before a 429.

    failures: kind of failure -> chance of one request.
    """

    latency_s: float = 0.3
    capacity: int = 100
    failures: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Visit:
    """One request. worker: the process that sent it. had_token: it was paid, at least in part."""

    id: str
    key: LedgerKey
    worker: Process
    sent_at: float
    in_flight: int = 0
    limit: int = 0
    ended_at: float | None = None
    text: str | None = None
    had_token: bool = False


class ModelServer:
    """Answers in virtual time; remembers everything."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, setup: ServerSetup, *, ttl_s: float) -> None:
        self._scheduler, self._rng, self._setup, self._ttl_s = scheduler, rng, setup, ttl_s
        self._inside: dict[str, Visit] = {}
        self.visits: list[Visit] = []
        self._arrivals: list[Arrival] = []
        self._departures: dict[str, Departure] = {}

    def arrive(self, worker: Process, trace: str) -> tuple[Visit, str]:
        """Take one request in; returns it and its fate: "ok" or a kind of failure."""
        name, _, stamps = trace.partition(";")
        run, item, repeat, generation, attempt = name.split("/")
        epoch, limit = (int(number) for number in stamps.split(";"))
        key = LedgerKey(item, int(repeat), int(generation))
        visit = Visit(f"r{len(self.visits)}", key, worker, self._scheduler.now, self._in_flight(), limit)
        self.visits.append(visit)
        fate = self._fate()
        status = 429 if fate == "rate_limited" else 200
        self._arrivals.append(
            Arrival(
                visit.id, visit.sent_at, run, item, key.repeat, key.generation,
                int(attempt), epoch, limit, visit.in_flight, status,
            )
        )  # fmt: skip
        self._inside[visit.id] = visit
        self._scheduler.note("srv", f"{visit.id} {item} of {worker.name} epoch {epoch} {len(self._inside)}/{limit}")
        return visit, fate

    def serve(self, visit: Visit, fate: str, deliver: Callable[[], None]) -> None:
        """Work on a request; the server goes on while its client stands still. A `timeout` is never answered."""
        if fate == "timeout":
            return
        latency_s = self._setup.latency_s * self._rng.uniform(1.0, 3.0)
        if fate in QUICK:
            latency_s *= 0.1
        elif fate in PAID:
            self._scheduler.after(latency_s * FIRST_TOKEN, lambda: self._start(visit))
        self._scheduler.after(latency_s, lambda: self._end(visit, fate, deliver))

    def _start(self, visit: Visit) -> None:
        visit.had_token = visit.had_token or visit.ended_at is None

    def _end(self, visit: Visit, fate: str, deliver: Callable[[], None]) -> None:
        if visit.ended_at is not None:
            return  # its client is dead
        if fate == "ok":
            visit.text = f"Answer: {visit.key.item} as {visit.id}"
        self.leave(visit, {"ok": "completed", "cut": "cut", "rate_limited": "rejected"}.get(fate, "fault"))
        self._scheduler.after(WIRE_S, deliver, process=visit.worker)

    def leave(self, visit: Visit, outcome: str) -> None:
        if self._inside.pop(visit.id, None) is not None:
            visit.ended_at = self._scheduler.now
            tokens = TOKENS if visit.had_token else 0
            self._departures[visit.id] = Departure(visit.id, visit.ended_at, outcome, output_tokens=tokens)

    def forget(self, worker: Process) -> None:
        """The connections of a dead process are closed."""
        for visit in [visit for visit in self._inside.values() if visit.worker is worker]:
            self.leave(visit, "cancelled")

    def open_of(self, worker: Process) -> list[Visit]:
        return [visit for visit in self._inside.values() if visit.worker is worker]

    def said(self) -> dict[LedgerKey, list[Visit]]:
        """Return the answered requests by key, in order of arrival."""
        found: dict[LedgerKey, list[Visit]] = defaultdict(list)
        for visit in self.visits:
            if visit.text is not None:
                found[visit.key].append(visit)
        return found

    def ledger(self) -> Ledger:
        return Ledger(tuple(self._arrivals), dict(self._departures))

    def _in_flight(self) -> int:
        """Count the requests inside as I4 judges them: what a worker sent before its lease ran out is not recalled."""
        return sum(not self._is_left_over(visit) for visit in self._inside.values())

    def _is_left_over(self, visit: Visit) -> bool:
        """Say whether its sender was lost for longer than a TTL, and sent it within that."""
        since = visit.worker.lost_since
        return since is not None and visit.sent_at <= since + self._ttl_s < self._scheduler.now

    def _fate(self) -> str:
        if len(self._inside) >= self._setup.capacity:
            return "rate_limited"
        roll = self._rng.random()
        for kind, chance in self._setup.failures.items():
            roll -= chance
            if roll < 0:
                return kind
        return "ok"


class SimSender:
    """One worker's way to the server; the Sender of its WorkerLoop."""

    def __init__(self, server: ModelServer, scheduler: Scheduler, loop: VirtualLoop, worker: Process) -> None:
        self._server, self._scheduler, self._loop, self._worker = server, scheduler, loop, worker

    async def send(
        self, request: Request, *, trace: str | None = None, deadline_s: float, progress: Watch | None = None
    ) -> Completion:
        assert trace is not None and progress is not None, "the simulation judges requests by their trace"
        sent_at = self._scheduler.now
        visit, fate = self._server.arrive(self._worker, trace)
        here = self._loop.create_future()

        def deliver() -> None:
            if not here.done():
                here.set_result(None)
                self._loop.pump()

        self._server.serve(visit, fate, deliver)
        try:
            async with asyncio.timeout(deadline_s):
                await here
        except TimeoutError:
            self._server.leave(visit, "cancelled")
            raise self._failure("timeout", sent_at) from None
        except asyncio.CancelledError:
            self._server.leave(visit, "cancelled")
            raise
        if fate != "ok":
            raise self._failure(fate, sent_at)
        progress.first_token()
        progress.tokens(TOKENS)
        return self._completion(visit, sent_at)

    async def aclose(self) -> None:
        return None

    def _completion(self, visit: Visit, sent_at: float) -> Completion:
        assert visit.text is not None
        rtt_s = self._scheduler.now - sent_at
        ttft_s = rtt_s * FIRST_TOKEN
        return Completion(
            visit.text,
            "stop",
            Status.OK,
            rtt_s=rtt_s,
            ttft_s=ttft_s,
            tpot_s=(rtt_s - ttft_s) / (TOKENS - 1),
            prompt_tokens=20,
            output_tokens=TOKENS,
            usage_source="server",
            request_id=visit.id,
        )

    def _failure(self, kind: str, sent_at: float) -> EndpointError:
        error = make(kind)
        return type(error)(replace(error.failure, rtt_s=self._scheduler.now - sent_at))
