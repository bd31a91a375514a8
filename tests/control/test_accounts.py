"""Accounts: the sums that an exchange asks for hold after whatever was lifted out and laid back."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from evalpipe.control.accounts import Account, Accounts
from evalpipe.control.lease import LeaseBook, Report
from evalpipe.control.observation import Observation

TTL_S = 15.0
REPORTS = st.lists(
    st.tuples(st.integers(0, 5), st.floats(0, 20), st.integers(0, 9), st.integers(0, 9), st.integers(0, 30)),
    max_size=60,
)


@given(reports=REPORTS)
def test_sums_and_losses_are_those_of_a_plain_count(reports: list[tuple[int, float, int, int, int]]):
    """However workers come and fall silent: sums as if added up anew, and whoever is silent for a TTL is found."""
    accounts: Accounts[None] = Accounts()
    heard: dict[str, float] = {}
    now = 0.0
    for number, seconds, in_flight, held, want in reports:
        now += seconds
        lost = accounts.lost(now=now, ttl_s=TTL_S)
        assert set(lost) == {name for name, at in heard.items() if now - at > TTL_S}
        for name in lost:
            accounts.lift(name)
            del heard[name]
        name = f"w{number}"
        account = accounts.lift(name) or Account(1)
        account.in_flight, account.held, account.heard_at = in_flight, held, now
        account.demand = in_flight + want
        account.permits = min(account.permits, account.demand)
        accounts.lay(name, account)
        heard[name] = now
        accounts.validate()


def plain_share(limit: int, demands: dict[str, int], name: str) -> int:
    """Fill the smallest demands first; who is left shares what is left, the first ones one more."""
    left, claims = limit, sorted((demand, key) for key, demand in demands.items())
    for remaining in range(len(claims), 0, -1):
        demand, key = claims[len(claims) - remaining]
        share = min(demand, -(-left // remaining))
        if key == name:
            return share
        left -= share
    raise AssertionError(name)


@given(demands=st.lists(st.integers(1, 60), min_size=1, max_size=12), spare=st.integers(0, 80))
def test_the_share_is_the_fair_one(demands: list[int], spare: int):
    """Nobody gets more than it asks for, the rest is split evenly: as when it is worked out from the start."""
    limit, asked = len(demands) + spare, {f"w{i:02d}": demand for i, demand in enumerate(demands)}
    for name, demand in asked.items():
        book = LeaseBook(0)  # all have said what they want and nobody has got any of it
        for other, wanted in asked.items():
            book.exchange(Report(other, 1, 1, 0, wanted, Observation()), now=0.0)
        book.set_limit(limit, epoch=0)

        lease = book.exchange(Report(name, 1, 2, 0, demand, Observation()), now=10.0)

        assert lease.permits == plain_share(limit, asked, name)
