"""What the controller knows of each worker process, and what it asks of all of them at every exchange. Pure.

The sums are kept up to date, not summed up: with 256 workers, adding them up took most of the controller's time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Generic, TypeVar

AnyLease = TypeVar("AnyLease")


@dataclass(slots=True)
class Account(Generic[AnyLease]):
    """One worker process. demand: requests in flight and those that it wants to send. held: permits that it keeps to.

    holding_since: None while it holds no permit. lease: the last one, for a report that comes again.
    """

    incarnation: int
    sequence: int = 0
    in_flight: int = 0
    held: int = 0
    permits: int = 0
    demand: int = 0
    heard_at: float = 0.0
    holding_since: float | None = None
    waiting_since: float = 0.0
    lease: AnyLease | None = None

    @property
    def charged(self) -> int:
        """Most requests it can have out until it is heard again: permits of a shrinking worker count until back."""
        return max(self.in_flight, self.held, self.permits)


class Accounts(Generic[AnyLease]):
    """Accounts by name. in_flight, charged: of all. claims: (demand, name) of those that want something, in order.

    Whoever changes an account lifts it out before and lays it back after.
    """

    def __init__(self) -> None:
        self.in_flight = self.charged = 0
        self.claims: list[tuple[int, str]] = []
        self._by_name: dict[str, Account[AnyLease]] = {}
        self._none_lost_until = -math.inf  # nobody's TTL ends before

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Account[AnyLease] | None:
        return self._by_name.get(name)

    def lift(self, name: str) -> Account[AnyLease] | None:
        """Take an account out, to change it or for good; None when there is none."""
        account = self._by_name.pop(name, None)
        if account is not None:
            self.in_flight -= account.in_flight
            self.charged -= account.charged
            if account.demand > 0:
                del self.claims[bisect_left(self.claims, (account.demand, name))]
        return account

    def lay(self, name: str, account: Account[AnyLease]) -> None:
        """Put an account in, or back."""
        self._by_name[name] = account
        self.in_flight += account.in_flight
        self.charged += account.charged
        if account.demand > 0:
            insort(self.claims, (account.demand, name))

    def lost(self, *, now: float, ttl_s: float) -> list[str]:
        """Return who was not heard for a TTL."""
        if now < self._none_lost_until:
            return []
        lost = [name for name, account in self._by_name.items() if now - account.heard_at > ttl_s]
        heard = [account.heard_at for account in self._by_name.values() if now - account.heard_at <= ttl_s]
        self._none_lost_until = min(heard, default=now) + ttl_s  # whoever comes now is heard later
        return lost

    def validate(self) -> None:
        """Assert that no account is impossible, that nobody was lent more than it asked for, and that the sums hold."""
        for name, account in self._by_name.items():
            assert min(account.in_flight, account.held, account.permits) >= 0, (name, account)
            assert account.permits <= account.demand, (name, account)
        accounts = self._by_name.values()
        assert self.in_flight == sum(account.in_flight for account in accounts), self.in_flight
        assert self.charged == sum(account.charged for account in accounts), self.charged
        claims = sorted((account.demand, name) for name, account in self._by_name.items() if account.demand > 0)
        assert self.claims == claims, self.claims
