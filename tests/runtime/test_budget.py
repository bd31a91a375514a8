"""What a run may spend: what is counted, when it stops, and the line that says how to go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store.store_rows import Relay, SmallRun, make_result

from evalpipe.config import load_config
from evalpipe.errors import ConfigError
from evalpipe.runtime.budget import Budget, Tokens, spent_before
from evalpipe.runtime.endings import BUDGET, Ending
from evalpipe.runtime.messages import Counters

NOTHING = Tokens()


def make(*, before: Tokens = NOTHING, **settings: Any) -> Budget:
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    return Budget(load_config(flags=flags, environ={}), before=before, now=100.0)


def test_all_workers_and_all_drivers_count_together():
    """A worker's counters are totals of its process: told twice they count once, and a successor adds to them."""
    budget = make(budget__tokens=1_000, before=Tokens(100, 50))
    for process, prompt, output in (("w0.1", 200, 100), ("w0.1", 300, 200), ("w1.1", 100, 100)):
        budget.on_reply(process, Counters(prompt_tokens=prompt, output_tokens=output))

    below = budget.verdict(now=101.0)
    budget.on_reply("w0.2", Counters(prompt_tokens=100, output_tokens=50))

    assert below is None
    assert budget.spent == Tokens(600, 400)
    assert budget.verdict(now=102.0) == Ending(
        BUDGET, "the budget is spent: 1,000 tokens of 1,000; a larger budget.tokens goes on from here"
    )


def test_money_is_counted_at_the_prices_of_the_endpoint():
    """Prices are per million tokens, in and out apart."""
    budget = make(budget__money=3.0, endpoint__price_input=1.0, endpoint__price_output=4.0)

    budget.on_reply("w0.1", Counters(prompt_tokens=1_000_000, output_tokens=499_999))
    below = budget.verdict(now=101.0)
    budget.on_reply("w0.1", Counters(prompt_tokens=1_000_000, output_tokens=500_000))
    spent = budget.verdict(now=101.0)

    assert below is None
    assert spent is not None and "3.00 of 3.00 at endpoint.price_input" in spent.why


def test_time_is_that_of_this_start():
    """It counts from the driver's start, whatever drivers before it took."""
    budget = make(budget__wall_s=60.0)

    assert budget.verdict(now=159.9) is None
    assert budget.verdict(now=160.0) is not None


def test_without_a_budget_nothing_stops():
    """Any number of tokens, any time."""
    assert make(before=Tokens(10**12, 10**12)).verdict(now=10**9) is None


def test_money_without_prices_is_refused():
    """Nothing would ever be spent."""
    with pytest.raises(ConfigError, match=r"budget\.money needs endpoint\.price_input"):
        load_config(flags={"budget.money": 1.0}, environ={})


def test_stored_answers_count_and_failures_do_not(tmp_path: Path):
    """Every generation was paid for; a failed row tells no tokens."""
    small = SmallRun(Relay(tmp_path / "run"))
    rows = [replace(make_result(item), prompt_tokens=10, output_tokens=5) for item in range(3)]
    again = replace(make_result(0, generation=1), prompt_tokens=10, output_tokens=7)
    small.log.commit([small.write_rows([*rows, make_result(3, failed=True)]), small.write_rows([again])])
    config = load_config(flags={"budget.tokens": 1}, environ={})

    assert spent_before(config, small.store, small.log.state) == Tokens(40, 22)
    assert spent_before(load_config(environ={}), small.store, small.log.state) == Tokens()
