"""A load test in virtual time: open loop and closed loop against the server models, no clock.

The face that loadtest/ sees is the same as over HTTP: requests with four stamps, and samples of the server's counters.
Left out: the client. It is never late and has no limit of its own.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evalpipe.loadtest.records import OK, UNFINISHED, LoadRun, Request, ServerSample
from evalpipe.sim.engine import Event, Job, ServerModel
from evalpipe.sim.profiles import Profile

SAMPLE_S = 1.0
REFUSED_WAIT_S = 1.0  # a closed-loop user who is turned away comes back after this
REFUSALS = {429: "rate_limited", 503: "overloaded"}

STOP_EVERY_S = 5.0  # of virtual time

#: Told every five seconds what there is so far; True ends the sending.
Stop = Callable[[Sequence[Request], float], bool]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of whom. Prompts of one length; answers as long as the profile's. seed: of the lengths."""

    profile: Profile
    prompt_tokens: int = 512
    seed: int = 0


@dataclass(slots=True, eq=False)
class _Sent:
    job: Job
    scheduled_at: float
    sent_at: float
    first_at: float | None = None
    ended_at: float | None = None
    kind: str = UNFINISHED

    def freeze(self, *, tokens: int) -> Request:
        return Request(
            scheduled_at=self.scheduled_at,
            sent_at=self.sent_at,
            first_at=self.first_at,
            ended_at=self.ended_at,
            kind=self.kind,
            prompt_tokens=self.job.prompt_tokens,
            output_tokens=tokens,
        )


@dataclass(slots=True, eq=False)
class _World:
    """One test in progress: events in time order, the server's own before ours at the same instant."""

    model: ServerModel
    workload: Workload
    on_ended: Callable[[float, str], None] = lambda at, kind: None
    now: float = 0.0
    is_closed: bool = False  # nothing more is sent
    sent: list[_Sent] = field(default_factory=list)
    samples: list[ServerSample] = field(default_factory=list)
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"lengths/{self.workload.seed}")

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def send(self, *, scheduled_at: float) -> None:
        if self.is_closed:
            return
        prompt = self.workload.prompt_tokens
        demand = self.workload.profile.answers.draw(self._rng, prompt_tokens=prompt)
        sent = _Sent(Job(len(self.sent), prompt, demand.output_tokens, demand.work), scheduled_at, self.now)
        self.sent.append(sent)
        self.at(self.now + self.workload.profile.overhead_s, lambda: self._arrive(sent))

    def run_until(self, when: float) -> None:
        while True:
            ours = self._heap[0][0] if self._heap else when
            at = min(ours, self.model.next_event_at(), when)
            self.now = max(at, self.now)
            for event in self.model.advance(self.now):
                self._on_event(event)
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            if at >= when:
                return

    def sample(self) -> None:
        model = self.model
        self.samples.append(ServerSample(self.now, model.running, model.waiting, model.preemptions, model.kv_used))

    def requests(self) -> list[Request]:
        return [sent.freeze(tokens=self._tokens_of(sent)) for sent in self.sent]

    def _tokens_of(self, sent: _Sent) -> int:
        return sent.job.output_tokens if sent.kind == OK else self.model.tokens_of(sent.job.job_id)

    def _arrive(self, sent: _Sent) -> None:
        rejection = self.model.submit(sent.job, now=self.now)
        if rejection is not None:
            self._end(sent, self.now, REFUSALS.get(rejection.status, "bad_request"))

    def _on_event(self, event: Event) -> None:
        sent = self.sent[event.job_id]
        if event.kind == "first_token":
            sent.first_at = event.at
        elif event.kind == "done":
            self._end(sent, event.at, OK)

    def _end(self, sent: _Sent, at: float, kind: str) -> None:
        sent.ended_at, sent.kind = at, kind
        self.on_ended(at, kind)


def open_loop(
    workload: Workload,
    instants: Sequence[float],
    *,
    duration_s: float,
    drain_s: float = 60.0,
    most_in_flight: int = 4_000,
    stop: Stop | None = None,
) -> LoadRun:
    """Send at the given instants whatever the server does, then wait for what is in flight, at most drain_s.

    most_in_flight: the safety bound that ends the test.
    """
    world = _World(workload.profile.build(), workload)
    due = iter(instants)

    def send_next(at: float) -> None:
        world.send(scheduled_at=at)
        wait_for_next()

    def wait_for_next() -> None:
        if (at := next(due, None)) is not None:
            world.at(at, lambda: send_next(at))

    wait_for_next()
    _go(world, duration_s, most_in_flight=most_in_flight, stop=stop)
    sent_until, is_flooded = world.now, world.model.in_flight > most_in_flight
    world.is_closed = True
    while not is_flooded and world.model.in_flight and world.now < sent_until + drain_s:
        world.run_until(world.now + SAMPLE_S)
    return LoadRun(world.requests(), world.samples, sent_until, world.now, is_flooded)


def closed_loop(workload: Workload, users: int, *, duration_s: float, stagger_s: float = 3.0) -> LoadRun:
    """Let so many users send one request after the other; their first ones are spread over stagger_s.

    Nothing drains: what is in flight at the end stays unfinished.
    """
    world = _World(workload.profile.build(), workload)

    def send() -> None:
        world.send(scheduled_at=world.now)

    world.on_ended = lambda at, kind: world.at(at + (0.0 if kind == OK else REFUSED_WAIT_S), send)
    for user in range(users):
        world.at(user * stagger_s / users, send)
    _go(world, duration_s, most_in_flight=users, stop=None)
    return LoadRun(world.requests(), world.samples, world.now, world.now)


def _go(world: _World, duration_s: float, *, most_in_flight: int, stop: Stop | None) -> None:
    """Run second by second until the time, the bound or `stop` ends it."""
    asked_at = 0.0
    while world.now < duration_s and world.model.in_flight <= most_in_flight:
        world.sample()
        world.run_until(min(world.now + SAMPLE_S, duration_s))
        if stop is not None and world.now - asked_at >= STOP_EVERY_S:
            asked_at = world.now
            if stop(world.requests(), world.now):
                break
    world.sample()
