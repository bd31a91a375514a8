"""The second actuator: how many requests may begin, where a quota and not the server's speed is what bounds a run.

One rate for all workers. The controller lends credits with the permits, counts what was begun with them, and never has
more out than the rate has brought in; no worker's clock is compared with another's. Pure.

A quota is declared by the user, told by the headers of responses, or learned from refusals. The lowest rate holds: what
is told or learned can only lower what was declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evalpipe.control.door import Door
from evalpipe.control.learned import Learned
from evalpipe.control.lease import Report
from evalpipe.control.observation import Outcome, Sample
from evalpipe.control.purse import Purse
from evalpipe.control.quota import UNDECLARED, Quota, Told
from evalpipe.control.told import Hint

# Of a declared rate: with a second's burst it stays below the quota in each window of a minute, with half a second to
# spare for requests that a network holds up. Tokens need a second more: how many a request takes is known at its end.
DECLARED_REQUESTS, DECLARED_TOKENS = 0.975, 0.955
COST_PRIOR, COST_MEMORY = 1_000.0, 200  # tokens of a request before any was counted; requests that the mean remembers
REFUSED_AT_MOST_S = 5.0  # a refusal takes no longer, as far as waiting for one goes
#: Failures of requests that the server worked on: their tokens were counted, though nobody told us how many.
WORKED = frozenset({"timeout", "cut", "no_finish"})


@dataclass(slots=True)
class _Account:
    """One worker process. begun: requests so far; want: more that it could send now.

    lent: requests that may begin under its lease, None: nothing bounds them.
    """

    incarnation: int
    begun: int
    lent: int | None = None
    in_flight: int = 0
    want: int = 0


class Pacer:
    """Lend credits: `hear` each report, then `lend`; `advance` once a tick. `now`: seconds, monotonic."""

    def __init__(self, quota: Quota = UNDECLARED, *, pace: float | None = None) -> None:
        """pace: requests a second that were learned before, None for none."""
        self.door, self.learned = Door(), Learned() if pace is None else Learned.known(pace)
        self.is_holding = False  # something could have been sent since the last tick, had there been credits
        self._requests_told, self._tokens_told = Hint(), Hint()
        self._declared, self._found = Purse(), Purse()  # what the user said; what was told and learned since
        self._accounts: dict[str, _Account] = {}
        self._lent = self._in_flight = self._claimants = 0  # sums over the accounts
        self._cost, self._costs = COST_PRIOR, 0  # mean tokens of a request; of how many
        self._probing: str | None = None  # the worker that may send the one request while a quota is used up
        self._refused_s = 0.0  # how long a refusal takes
        self._advanced_at: float | None = None
        requests = quota.per_s(quota.rpm, of_it=DECLARED_REQUESTS)
        tokens = quota.per_s(quota.tpm, of_it=DECLARED_TOKENS)
        # one request need not wait; what others, or this run before a crash, have spent of the quota is not known
        self._declared.bound(requests=requests, tokens=tokens, left=1.0, cost=self._cost)

    @property
    def rate(self) -> float | None:
        """Requests a second that may begin, None where nothing bounds them."""
        rates = [purse.rate(cost=self._cost) for purse in (self._declared, self._found)]
        return min((rate for rate in rates if rate is not None), default=None)

    @property
    def knows_quota(self) -> bool:
        """Something was declared, told or learned, and bounds what is sent."""
        return self.rate is not None and not self.learned.is_cautious

    # --- workers ---

    def hear(self, report: Report, *, now: float) -> None:
        """Take in what a worker has begun since it was heard last: it has no credits now."""
        account = self._account(report)
        begun, account.begun = max(report.sent - account.begun, 0), report.sent
        self._count(account, -1)
        account.lent, account.in_flight, account.want = None, report.observation.in_flight, max(report.want, 0)
        self._count(account, 1)
        if begun:
            self._begin(begun, now)
        if self._probing == report.worker:
            self._probing = None
            if begun:
                self.door.on_probe(now=now)

    def lend(self, report: Report, *, permits: int, now: float) -> int | None:
        """Return how many requests the worker may begin until it asks again; None: nothing bounds them.

        Call it after `hear` and a tick, once a report. permits: of its lease.
        """
        if self.rate is None and not self.door.is_closed:
            return None
        account = self._accounts[report.worker]
        room = max(permits - account.in_flight, 0)
        account.lent = min(self._share(account, room, now), account.want)
        self._lent += account.lent
        self.is_holding |= account.lent < min(account.want, room)
        if self.door.is_closed and account.lent:
            self._probing = report.worker
        return account.lent

    def lent(self, worker: str) -> int | None:
        """Return what was lent to the worker's last report, for one that comes again."""
        return self._accounts[worker].lent

    def forget(self, worker: str) -> None:
        """A worker is gone: what it had out is taken as sent, and as paid."""
        account = self._accounts.pop(worker, None)
        if account is None:
            return
        self._count(account, -1)
        lent = account.lent or 0
        for purse in (self._declared, self._found):
            if purse.requests is not None:
                purse.requests.spend(lent)
            purse.finish((lent + account.in_flight) * self._cost)
        if self._probing == worker:
            self._probing = None

    # --- what came back ---

    def on_answers(self, samples: Sequence[Sample]) -> None:
        """Pay for what ended with the tokens it took. A refused request took none."""
        for sample in samples:
            if sample.outcome is Outcome.OK:
                tokens = float(sample.prompt_tokens + sample.output_tokens)
                self._costs = min(self._costs + 1, COST_MEMORY)
                self._cost += (max(tokens, 1.0) - self._cost) / self._costs
            elif sample.kind in WORKED:
                tokens = self._cost
            else:
                continue
            self._declared.finish(tokens)
            self._found.finish(tokens)

    def on_told(self, every: Iterable[Told], *, now: float) -> None:
        """Take in what responses said of quotas."""
        for told in every:
            if told.requests is not None:
                self._requests_told.hear(told.requests, now=now)
            if told.tokens is not None:
                self._tokens_told.hear(told.tokens, now=now)
            self._bound_found(now)

    def on_refused(self, samples: Sequence[Sample], *, now: float) -> None:
        """Count requests that were refused, whatever for."""
        self._refused_s = min(max(self._refused_s, *(sample.rtt_s for sample in samples)), REFUSED_AT_MOST_S)
        self.learned.on_refused(len(samples), now=now)

    def close(self, *, advice_s: float | None, now: float) -> None:
        """A quota is used up: nothing begins but one request alone, when it may be filled again."""
        for hint in (self._requests_told, self._tokens_told):
            hint.prove()
        self.learned.prove(now=now)
        self.door.shut(advice_s=advice_s, most_s=1.0 / (self.learned.rate or math.inf), now=now)
        self._bound_found(now)

    def hold(self, *, advice_s: float | None, is_suspect: bool, interval_s: float, now: float) -> None:
        """A request was refused: nothing begins until every worker knows, then one alone.

        is_suspect: it may have been for a quota.
        """
        self.learned.is_suspected |= is_suspect
        self.door.shut(wait_s=2 * interval_s, advice_s=advice_s, now=now)

    def advance(self, *, interval_s: float, now: float) -> bool:
        """Live through a tick; return whether the quota was seen to be refilled. interval_s: between exchanges."""
        seconds = 0.0 if self._advanced_at is None else now - self._advanced_at
        self._advanced_at = now
        if self.is_holding and not self.door.is_closed:
            for bound in (self.learned, self._requests_told, self._tokens_told):
                bound.advance(seconds)
        opened_at = self.door.open(patience_s=2 * (self._refused_s + interval_s), now=now)
        if opened_at is not None:
            self.learned.on_opened(opened_at, closed_s=opened_at - self.door.closed_at)
        self._bound_found(now)
        if opened_at is not None:
            self._found.empty()
        self.is_holding = False
        return opened_at is not None

    def describe(self) -> str:
        """Say in words what paces, and by whose word."""
        if self.door.is_closed:
            return "a quota is used up; one request at a time until it is refilled"
        declared, found = (purse.rate(cost=self._cost) for purse in (self._declared, self._found))
        is_declared = declared is not None and (found is None or declared <= found)
        whose = "as declared" if is_declared else "as learned" if self.learned.rate is not None else "as told"
        return f"paced at {60 * (self.rate or 0.0):,.0f} requests/min, {whose}"

    # --- inside ---

    def _account(self, report: Report) -> _Account:
        account = self._accounts.get(report.worker)
        if account is None or account.incarnation != report.incarnation:
            self.forget(report.worker)
            # what a process did before it was first heard, under another controller, is not known
            account = self._accounts[report.worker] = _Account(report.incarnation, report.sent)
        return account

    def _count(self, account: _Account, sign: int) -> None:
        self._lent += sign * (account.lent or 0)
        self._in_flight += sign * account.in_flight
        self._claimants += sign * (account.want > 0)

    def _begin(self, count: int, now: float) -> None:
        self._declared.begin(count, now=now)
        self._found.begin(count, now=now)
        self.learned.on_begun(count, now=now)

    def _share(self, account: _Account, room: int, now: float) -> int:
        """A worker's part of what may begin: as much as it has permits for, or an even share beyond that."""
        if self.door.is_closed:
            is_free = self._probing is None and self.door.can_probe(now=now) and self._ready(now, self._declared) >= 1
            return min(int(is_free), room)
        ready = self._ready(now, self._declared, self._found)
        fair = -(-ready // max(self._claimants, 1)) if ready >= self._claimants else 0
        return max(min(room, ready), fair)

    def _ready(self, now: float, *purses: Purse) -> int:
        """How many requests may begin now, at all workers together; a large number where nothing bounds them."""
        left = [purse.ready(lent=self._lent, in_flight=self._in_flight, cost=self._cost, now=now) for purse in purses]
        return max(math.floor(min(*left, 1e9)), 0)

    def _bound_found(self, now: float) -> None:
        rates = [self.learned.bound(now=now), self._requests_told.rate(cost=1.0, now=now)]
        requests = min((rate for rate in rates if rate is not None), default=None)
        tokens = self._tokens_told.rate(cost=self._cost, now=now)
        self._found.bound(requests=requests, tokens=tokens, left=0.0, cost=self._cost)
