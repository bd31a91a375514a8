"""How the simulated server misbehaves: which request meets which fault, and how each is played over HTTP.

The faults themselves are data in sim/faults.py. Which request meets which is a hash of the seed, the request's key and
how often that key was asked, so a retry may fare better and order does not matter.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from evalpipe.errors import ConfigError
from evalpipe.sim.exchange import Exchange
from evalpipe.sim.faults import FAULTS, Fault
from evalpipe.sim.profiles import did_you_mean

__all__ = ["FAULTS", "Fault", "FaultPlan", "misbehave_at_door", "misbehave_in_body", "misbehave_in_stream"]

DRIP_S = 0.2
_SSE = "text/event-stream; charset=utf-8"

#: share of requests, or {"share": .., "after": .., "until": ..} where it does not always hold
Shares = Mapping[str, float | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Turn:
    """How often a fault comes, and when: from request number `after` (from 0) to before request number `until`."""

    share: float
    after: float = 0
    until: float = math.inf


class FaultPlan:
    """Which request meets which fault. shares: by name of the fault, together at most 1."""

    def __init__(self, shares: Shares, *, seed: int) -> None:
        self._turns = sorted((name, _turn(name, given)) for name, given in shares.items())
        total = sum(turn.share for _, turn in self._turns)
        if total > 1 + 1e-9:
            raise ConfigError(f"the shares of all faults together must be at most 1, got {total:g}")
        self._seed = seed
        self._asked: Counter[str] = Counter()
        self._requests = 0

    def choose(self, key: str) -> Fault | None:
        """Return the fault of this request, None for an honest answer. Counts the call as one more asking of `key`."""
        if not self._turns:
            return None
        number, self._requests = self._requests, self._requests + 1
        self._asked[key] += 1
        draw = random.Random(f"fault/{self._seed}/{key}/{self._asked[key]}").random()
        for name, turn in self._turns:
            draw -= turn.share
            if draw < 0:
                return FAULTS[name] if turn.after <= number < turn.until else None
        return None


def _turn(name: str, given: float | Mapping[str, float]) -> Turn:
    """Read one entry of the plan. Raises ConfigError."""
    if name not in FAULTS:
        raise ConfigError(f"unknown fault {name!r}; {did_you_mean(name, FAULTS)}")
    try:
        turn = Turn(**given) if isinstance(given, Mapping) else Turn(given)
    except TypeError:
        raise ConfigError(f"fault {name}: takes share, after and until, got {given!r}") from None
    if not 0 <= turn.share <= 1:
        raise ConfigError(f"fault {name}: a share lies in [0, 1], got {turn.share}")
    if not 0 <= turn.after < turn.until:
        raise ConfigError(f"fault {name}: needs 0 <= after < until, got {turn.after:g} and {turn.until:g}")
    return turn


async def misbehave_at_door(fault: Fault, exchange: Exchange, *, is_stream: bool) -> None:
    """Answer with the fault instead of an answer."""
    if fault.raw:
        exchange.write_raw(fault.raw)
        await _end(fault, exchange)
    elif is_stream and fault.tail:
        await exchange.start(200, content_type=_SSE)
        await _write(exchange, fault.tail, fault)
    elif fault.end == "complete" or fault.body:
        length = len(fault.body) * fault.repeat + fault.missing
        await exchange.start(fault.status, content_type=fault.content_type, length=length, headers=fault.headers)
        await _write(exchange, fault.body, fault)
    else:
        if fault.end == "drip":
            await exchange.start(fault.status, content_type=fault.content_type)
        await _end(fault, exchange)


async def misbehave_in_stream(fault: Fault, exchange: Exchange) -> None:
    """Go on after the first chunk of a stream."""
    await _write(exchange, fault.tail, fault)


async def misbehave_in_body(fault: Fault, exchange: Exchange, *, honest: bytes) -> None:
    """Answer a request that is not streamed: with the fault's own body, or with half of the honest one."""
    complete = fault.end == "complete"
    length = len(fault.body) * fault.repeat if complete else len(honest)
    await exchange.start(200, content_type="application/json", length=length)
    await _write(exchange, fault.body if complete else honest[: len(honest) // 2], fault)


async def _write(exchange: Exchange, data: bytes, fault: Fault) -> None:
    """Send data as often as the fault says, then end as it says."""
    complete = fault.end == "complete"
    for left in range(fault.repeat - 1, -1, -1):
        if exchange.is_gone:
            return
        await exchange.write(data, is_last=complete and left == 0)
    await _end(fault, exchange)


async def _end(fault: Fault, exchange: Exchange) -> None:
    if fault.end == "close":
        exchange.close()
    elif fault.end == "reset":
        exchange.reset()
    elif fault.end == "drip":
        await _drip(exchange, is_raw=bool(fault.raw))
    if fault.end != "complete":
        await exchange.until_gone()  # else uvicorn would take an unfinished response for a bug, and end it properly


async def _drip(exchange: Exchange, *, is_raw: bool) -> None:
    while not await exchange.until_gone(poll_s=DRIP_S):
        if is_raw:
            exchange.write_raw(b"x")
        else:
            await exchange.write(b" ")
