"""A scenario: a course, the cluster around it, and who else uses the server. A value; `play` puts a law on it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evalpipe.control.build import build_law
from evalpipe.control.law import Law
from evalpipe.sim.cliff import CliffParams
from evalpipe.sim.course import Course, renumbered
from evalpipe.sim.engine import Job
from evalpipe.sim.trouble import Outage, Sizes
from evalpipe.sim.virtual import Party, run_together
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

IDS = 10**7  # jobs of one party have ids from a multiple of it on
FIXED = "fixed"
RARELY_S = 1.0  # between exchanges that change nothing: each costs as much as all requests that it tells of
LIKELY = 45  # a limit to begin with where nothing says better


@dataclass(frozen=True, slots=True)
class Guest:
    """Somebody else on the server, with a fixed limit, jobs of the course's kind, and the same path to it."""

    limit: int
    jobs: int
    starts_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a law is judged on.

    runs: of our own at once, each with the course's jobs and a controller of its own. slots: requests that the server
    runs at once, where that is what binds. max_limit: the largest fixed limit worth trying. start_over_best: the law
    starts at so many times the best fixed limit, None: where it does by itself.
    """

    course: Course
    setup: VirtualSetup = field(default_factory=VirtualSetup)
    guests: tuple[Guest, ...] = ()
    runs: int = 1
    slots: int | None = None
    max_limit: int = 700
    start_over_best: float | None = None

    def plain(self) -> Scenario:
        """Return the same as the best fixed limit meets it: one worker beside the controller, nothing paced.

        Where nothing is refused, exchanges and pacing change nothing, and ten times fewer exchanges are faster.
        """
        setup = replace(self.setup, workers=1, lag_s=0.0, is_sampling=False)
        if self.can_refuse:
            setup = replace(setup, exchange_s=VirtualSetup().exchange_s, quota=None)
        else:
            setup = replace(setup, exchange_s=RARELY_S)
        return replace(self, setup=setup, start_over_best=None)

    @property
    def has_edge(self) -> bool:
        """The server collapses, or its queue has an end: one request more may make all the difference."""
        server = self.course.profile.server
        return isinstance(server, CliffParams) or server.max_queue is not None

    @property
    def can_refuse(self) -> bool:
        """The server may refuse or fail an attempt."""
        quota = self.course.profile.quota
        has_quota = quota.rpm is not None or quota.tpm is not None
        return has_quota or self.has_edge or bool(self.course.troubles) or self.setup.deadline_s is not None

    def play(self, make_law: Callable[[], Law], *, seed: int, horizon_s: float) -> Played:
        """Run it once; make_law is called for each run of ours."""
        setup = replace(self.setup, overhead_s=self.course.profile.overhead_s, seed=seed, horizon_s=horizon_s)
        ours = [
            Party(make_law(), self._jobs(seed, number), replace(setup, seed=seed + number))
            for number in range(self.runs)
        ]
        guests = [self._guest(seed, number, setup) for number in range(len(self.guests))]
        done = run_together([*ours, *guests], self.course.server(seed))
        return Played(tuple(done[: self.runs]), tuple(done[self.runs :]))

    def play_guest_alone(self, *, seed: int, horizon_s: float) -> VirtualRun:
        """Run the first guest on the server without us."""
        setup = replace(self.setup, overhead_s=self.course.profile.overhead_s, seed=seed, horizon_s=horizon_s)
        party = replace(self._guest(seed, 0, setup), is_guest=False)
        return run_together([party], self.course.server(seed))[0]

    @property
    def near(self) -> int:
        """Return where the search for the best fixed limit may begin."""
        server = self.course.profile.server
        return self.slots or (server.safe if isinstance(server, CliffParams) else LIKELY)

    @property
    def outages(self) -> tuple[Outage, ...]:
        return tuple(trouble for trouble in self.course.troubles if isinstance(trouble, Outage))

    def levels(self) -> tuple[tuple[float, float, float], ...]:
        """Return (second, least, most) that should be in flight from each change of the server's size on."""
        sizes = next((trouble for trouble in self.course.troubles if isinstance(trouble, Sizes)), Sizes(()))
        server = self.course.profile.server
        most = server.flat_until if isinstance(server, CliffParams) else server.slots
        least = server.safe if isinstance(server, CliffParams) else server.slots
        return tuple((at, share * least, share * most) for at, share in sizes.steps)

    def _jobs(self, seed: int, number: int) -> list[Job]:
        return renumbered(self.course.draw(seed + 1_000 * number), number * IDS)

    def _guest(self, seed: int, number: int, setup: VirtualSetup) -> Party:
        guest = self.guests[number]
        place = self.runs + number
        jobs = replace(self.course, jobs=guest.jobs).draw(seed + 1_000 * place)
        law = build_law(FIXED, start=guest.limit)
        own = replace(setup, workers=1, seed=seed + place, starts_at_s=guest.starts_at_s)
        return Party(law, renumbered(jobs, place * IDS), own, is_guest=True)


@dataclass(frozen=True, slots=True)
class Played:
    """ours: one run for each of ours; guests: the others', as far as they came."""

    ours: tuple[VirtualRun, ...]
    guests: tuple[VirtualRun, ...]
