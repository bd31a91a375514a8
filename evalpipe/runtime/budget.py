"""What a run may spend: tokens and money over all its drivers, time for each of them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from evalpipe.config import Config
from evalpipe.runtime.endings import BUDGET, Ending
from evalpipe.runtime.messages import Counters
from evalpipe.store.objects import ObjectStore
from evalpipe.store.rows import read_results
from evalpipe.store.state import LogState


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of answers. Failed attempts may be billed too, but no server tells what for."""

    prompt: int = 0
    output: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.prompt + other.prompt, self.output + other.output)


class Budget:
    """Says when a run has spent what it may. Requests that are out by then are finished, and pass it by their cost.

    before: what drivers before this one spent on the run. now: seconds, monotonic.
    """

    def __init__(self, config: Config, *, before: Tokens, now: float) -> None:
        self._limits, self._endpoint = config.budget, config.endpoint
        self._before, self._began = before, now
        self._seen: dict[str, Tokens] = {}  # worker process -> its own total

    def on_reply(self, process: str, counters: Counters) -> None:
        self._seen[process] = Tokens(counters.prompt_tokens, counters.output_tokens)

    @property
    def spent(self) -> Tokens:
        return sum(self._seen.values(), self._before)

    def verdict(self, *, now: float) -> Ending | None:
        """Return the ending when something is spent, None to go on."""
        limits, spent = self._limits, self.spent
        tokens, money = spent.prompt + spent.output, self._price(spent)
        if limits.tokens is not None and tokens >= limits.tokens:
            return _ending("tokens", f"{tokens:,} tokens of {limits.tokens:,}")
        if limits.money is not None and money >= limits.money:
            return _ending("money", f"{money:,.2f} of {limits.money:,.2f} at endpoint.price_input and price_output")
        if limits.wall_s is not None and now - self._began >= limits.wall_s:
            return _ending("wall_s", f"{now - self._began:.0f} s of {limits.wall_s:g} s")
        return None

    def _price(self, tokens: Tokens) -> float:
        """Return the cost in the currency of endpoint.price_*, which are per million tokens."""
        into, out = self._endpoint.price_input or 0.0, self._endpoint.price_output or 0.0
        return (into * tokens.prompt + out * tokens.output) / 1e6


def spent_before(config: Config, store: ObjectStore, state: LogState) -> Tokens:
    """Return what the stored answers took; nothing is read where no budget asks for it."""
    if config.budget.tokens is None and config.budget.money is None:
        return Tokens()
    tables = read_results(store, state, every_generation=True)
    return sum((Tokens(*(pc.sum(table[name]).as_py() or 0 for name in _COLUMNS)) for table in tables), Tokens())


_COLUMNS = ("prompt_tokens", "output_tokens")


def _ending(name: str, what: str) -> Ending:
    return Ending(BUDGET, f"the budget is spent: {what}; a larger budget.{name} goes on from here")
