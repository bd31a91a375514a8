"""Leases: how workers on many hosts spend one limit without asking for each request.

LeaseBook is the controller's side: it lends every worker a number of permits and never lets the sum pass the limit.
WorkerLease is the worker's side: it spends the permits and stops when the lease runs out. Both are pure; an exchange
is one call that answers at once, carries absolute counts and may be repeated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from evalpipe.control.accounts import Account, Accounts
from evalpipe.control.cost import ExchangeCost
from evalpipe.control.observation import Observation
from evalpipe.errors import StateError
from evalpipe.records import Packed

#: A worker's name and incarnation: two processes of one name are never taken for one.
Process = tuple[str, int]

# A slot that must rotate (more workers than permits) stays this long: longer than most requests' overhead, short enough
# that nobody starves.
ROTATE_S = 1.0
# Growth is lent out in steps: a jump of 100 into a short server queue is a burst of rejections even at the right level.
GROWTH_STEP_S, GROWTH_STEP_SHARE, GROWTH_STEP_MIN = 0.25, 0.2, 8.0


@dataclass(frozen=True, slots=True)
class Report(Packed):
    """What a worker says in one exchange; absolute counts, so that a repeated or lost call does no harm.

    incarnation: differs between two processes of one worker name. sequence: counts exchanges from 1.
    held: permits the worker keeps to while the call is out. want: requests it could send at once if permitted.
    sent: requests that this process has begun so far, all of them.
    """

    worker: str
    incarnation: int
    sequence: int
    held: int
    want: int
    observation: Observation = field(default_factory=Observation)
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Lease(Packed):
    """permits: requests the worker may have in flight, for ttl_s seconds from the start of its exchange.

    epoch, limit: the controller's, stamped on each request. others_in_flight: requests out at the other workers.
    overdue: (log2 of prompt tokens, seconds) after which a first token is overdue.
    credits: requests that may begin under this lease, until the worker asks again; None: as many as it has permits for.
    """

    permits: int
    epoch: int
    limit: int
    ttl_s: float
    next_exchange_s: float
    others_in_flight: int = 0
    overdue: tuple[tuple[int, float], ...] = ()
    credits: int | None = None


@dataclass(frozen=True, slots=True)
class _Left:
    """What a worker that fell silent may still have out, until an instant."""

    charged: int
    until: float


class LeaseBook:
    """Share `limit` permits among workers by their demand. One door in: `exchange`.

    Invariant: permits lent now never exceed the limit less what all others may still have out, so once the requests
    of an older, larger limit are back, the sum stays at or below the limit.

    unheard: processes that may hold leases of an earlier book (the controller was restarted). Until each was heard, or
    can have nothing out any more, nobody is lent more than it holds: the sum of those leases was within a limit.
    """

    def __init__(
        self, limit: int, *, ttl_s: float = 15.0, exchange_s: float = 0.1, unheard: Iterable[Process] = ()
    ) -> None:
        self.limit, self.epoch, self.ttl_s, self.exchange_s = limit, 0, ttl_s, exchange_s
        self._released = float(limit)
        self._released_at: float | None = None
        self.cost = ExchangeCost()
        self.linger_s = 0.0  # the longest that a request may be out; the owner knows (ControlCore)
        self._accounts: Accounts[Lease] = Accounts()
        self._silent: dict[Process, _Left] = {}
        self._unheard = set(unheard)
        self._began_at: float | None = None

    @property
    def in_flight(self) -> int:
        return self._accounts.in_flight

    @property
    def workers(self) -> int:
        return len(self._accounts)

    def set_limit(self, limit: int, *, epoch: int) -> None:
        """Take the law's word. A cut counts at each worker's next exchange; growth is released in steps."""
        self.limit, self.epoch = limit, epoch
        self._released = min(self._released, float(limit))

    def is_new(self, report: Report) -> bool:
        """Say whether the report has not been answered yet. Raises StateError for a process that was replaced."""
        account = self._accounts.get(report.worker)
        if account is None or report.incarnation > account.incarnation:
            return True
        if report.incarnation < account.incarnation:
            raise StateError(f"worker {report.worker}: incarnation {report.incarnation} was replaced by a newer one")
        return report.sequence > account.sequence or account.lease is None

    def exchange(self, report: Report, *, now: float) -> Lease:
        """Answer one report; a repeated one gets the same lease and has no effect. Raises StateError as `is_new`."""
        self.expire(now=now)
        if not self.is_new(report):
            account = self._accounts.get(report.worker)
            assert account is not None and account.lease is not None
            return account.lease
        process = (report.worker, report.incarnation)
        self._silent.pop(process, None)  # it tells itself what it has out
        self._unheard.discard(process)
        account = self._take_in(report, now)
        account.permits = self._grant(report.worker, account, now)
        self._note_holding(account, now)
        account.lease = lease = self._lease(account)
        self._accounts.lay(report.worker, account)
        return lease

    def release(self, process: Process) -> bool:
        """Forget a process known to be dead: its permits are free at once. True unless a newer one has its name."""
        worker, incarnation = process
        self._silent.pop(process, None)
        self._unheard.discard(process)
        account = self._accounts.get(worker)
        if account is None or account.incarnation != incarnation:
            return account is None
        self._accounts.lift(worker)
        return True

    def expire(self, *, now: float) -> list[str]:
        """Forget workers not heard for a TTL: by then they have stopped sending. Returns their names.

        What they sent before may be at the server for linger_s more, and is charged until then.
        """
        self._began_at = now if self._began_at is None else self._began_at
        if now - self._began_at > self.ttl_s + self.linger_s:
            self._unheard.clear()
        lost = self._accounts.lost(now=now, ttl_s=self.ttl_s)
        for name in lost:
            account = self._accounts.lift(name)
            assert account is not None
            self._silent[name, account.incarnation] = _Left(account.charged, now + self.linger_s)
        self._silent = {key: left for key, left in self._silent.items() if left.until > now}
        return lost

    @property
    def charged(self) -> int:
        """Most requests the cluster can have out until its workers are heard again."""
        return self._accounts.charged + self._left

    @property
    def _left(self) -> int:
        return sum(left.charged for left in self._silent.values())

    def validate(self) -> None:
        """Assert that no account is impossible and that nobody was lent more than it asked for."""
        self._accounts.validate()

    def _take_in(self, report: Report, now: float) -> Account[Lease]:
        """Lift the worker's account out, new where its process is, with what it says of itself in it."""
        account = self._accounts.lift(report.worker)
        if account is None or report.incarnation > account.incarnation:
            if account is not None:  # nobody said that the process before it is dead
                until = account.heard_at + self.ttl_s + self.linger_s
                self._silent[report.worker, account.incarnation] = _Left(account.charged, until)
            account = Account(report.incarnation, waiting_since=now)
        account.sequence, account.heard_at = report.sequence, now
        account.in_flight, account.held = report.observation.in_flight, report.held
        account.demand = report.observation.in_flight + max(report.want, 0)
        account.permits = 0  # given anew; `held` covers what it may do until the answer arrives
        return account

    def _grant(self, name: str, account: Account[Lease], now: float) -> int:
        """account: lifted out, so that what is charged now is charged to the others."""
        free = max(self._usable(now) - self._accounts.charged - self._left, 0)
        if self._unheard:
            free = min(free, max(account.in_flight, account.held))
        return min(self._share(name, account, now), free, account.demand)

    def _usable(self, now: float) -> int:
        """The limit, with growth released by 20 % (at least 8 permits) a quarter second."""
        if self._released_at is not None and self._released < self.limit:
            step = max(GROWTH_STEP_MIN, GROWTH_STEP_SHARE * self._released)
            self._released += step * max(now - self._released_at, 0.0) / GROWTH_STEP_S
        self._released = min(self._released, float(self.limit))
        self._released_at = now
        return int(self._released)

    def _share(self, name: str, account: Account[Lease], now: float) -> int:
        """Max-min fair share of one worker: nobody gets more than it asks for, the rest is split evenly."""
        if account.demand == 0:
            return 0
        claims, own = self._accounts.claims, (account.demand, name)
        left, remaining = self.limit, len(claims) + 1
        if remaining > self.limit:
            return int(name in self._rotation(name, account, now))
        before = bisect_left(claims, own)
        for index, (demand, _) in enumerate(claims[:before]):
            if demand >= -(-left // remaining):  # from here on nobody gets all: the first few one more than the rest
                return min(account.demand, left // remaining + (before - index < left % remaining))
            left, remaining = left - demand, remaining - 1
        return min(account.demand, -(-left // remaining))

    def _rotation(self, name: str, account: Account[Lease], now: float) -> set[str]:
        """Who holds the few permits: those whose turn has just begun, then those who waited longest."""

        def turn(key: str) -> tuple[int, float, str]:
            other = account if key == name else self._accounts.get(key)
            assert other is not None
            if other.holding_since is not None and now - other.holding_since < ROTATE_S:
                return (0, other.holding_since, key)
            return (1, other.waiting_since if other.holding_since is None else now, key)

        names = [name, *(key for _, key in self._accounts.claims)]
        return set(sorted(names, key=turn)[: self.limit])

    def _note_holding(self, account: Account[Lease], now: float) -> None:
        if account.permits > 0 and account.holding_since is None:
            account.holding_since = now
        elif account.permits == 0 and account.holding_since is not None:
            account.holding_since, account.waiting_since = None, now

    def _lease(self, account: Account[Lease]) -> Lease:
        """account: lifted out."""
        return Lease(
            permits=account.permits,
            epoch=self.epoch,
            limit=self.limit,
            ttl_s=self.ttl_s,
            next_exchange_s=max(self.exchange_s, self.cost.interval_s(len(self._accounts) + 1)),
            others_in_flight=self._accounts.in_flight,
        )


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to one request, with what was known when it was given; in_flight_at_send counts itself."""

    epoch: int
    limit: int
    in_flight_at_send: int


class WorkerLease:
    """A worker's purse of permits. Sends only while the lease is fresh and nothing made it brake."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.sent = 0  # requests begun so far
        self.sequence = 0
        self._lease = Lease(permits=0, epoch=0, limit=0, ttl_s=0.0, next_exchange_s=0.0)
        self._permits = 0
        self._credits: int | None = None  # left of the lease's
        self._peak = 0
        self._asked_at = 0.0
        self._fresh_until: float | None = None  # None: no lease yet
        self._braked_at: int | None = None  # sequence of the last exchange begun before the brake

    @property
    def lease(self) -> Lease:
        return self._lease

    def take(self, *, now: float) -> Permit | None:
        """Start one request, or None: nothing free, braked, out of credits, or the lease ran out."""
        is_held = self._braked_at is not None or self._credits == 0
        if is_held or self.in_flight >= self._permits or self.is_expired(now=now):
            return None
        self.in_flight += 1
        self.sent += 1
        if self._credits is not None:
            self._credits -= 1
        self._peak = max(self._peak, self.in_flight)
        lease = self._lease
        return Permit(lease.epoch, lease.limit, self.in_flight + lease.others_in_flight)

    def give_back(self) -> None:
        """End one request, however it ended."""
        assert self.in_flight > 0, "a permit came back twice"
        self.in_flight -= 1

    def brake(self) -> None:
        """Stop new sends until an exchange that begins after this is answered: a 429, 503 or reset was seen here."""
        self._braked_at = self.sequence

    def is_expired(self, *, now: float) -> bool:
        """True once a lease was had and not renewed within its TTL: stop sending, finish, flush, exit."""
        return self._fresh_until is not None and now > self._fresh_until

    def ask(self, *, want: int, now: float) -> tuple[int, int, int, int]:
        """Begin an exchange. Returns (sequence, in_flight, peak since the last one, held).

        Until the answer, the worker keeps to `held`: it gives back at once what it has no use for, and all credits:
        what it began under the last lease is told, so the rest can be lent to others.
        """
        self.sequence += 1
        self._asked_at = now
        self._permits = min(self._permits, self.in_flight + max(want, 0))
        self._credits = None if self._credits is None else 0
        peak, self._peak = max(self._peak, self.in_flight), self.in_flight
        return self.sequence, self.in_flight, peak, self._permits

    def renew(self, lease: Lease) -> None:
        """Take the answer of the exchange that `ask` began; the TTL counts from the asking."""
        self._lease, self._permits, self._credits = lease, lease.permits, lease.credits
        self._fresh_until = self._asked_at + lease.ttl_s
        if self._braked_at is not None and self.sequence > self._braked_at:
            self._braked_at = None
