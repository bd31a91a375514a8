"""The arithmetic by which kills are judged, on ledgers made by hand."""

from __future__ import annotations

from chaos.reckoning import Kill, bills

from evalpipe.sim.ledger import Arrival, Departure, Ledger


def ledger(*requests: tuple[str, float, float, int]) -> Ledger:
    """Build one from (item, arrived, left, output tokens)."""
    arrivals = tuple(
        Arrival(f"r{n}", came, "run", item, 0, 0, 1, 0, 8, 0, 200) for n, (item, came, _, _) in enumerate(requests)
    )
    departures = {
        f"r{n}": Departure(f"r{n}", left, "completed" if tokens > 5 else "cancelled", output_tokens=tokens)
        for n, (_, _, left, tokens) in enumerate(requests)
    }
    return Ledger(arrivals, departures)


def kill(at: float) -> Kill:
    return Kill(at, "driver", "middle", dying_s=1.0)


def test_an_item_paid_again_counts_against_the_kill_before():
    """Lost in the first kill and paid again after it: one against the first, none against the second."""
    book = ledger(("a", 1.0, 3.0, 2), ("b", 1.0, 2.0, 9), ("a", 5.0, 6.0, 9), ("c", 9.0, 9.5, 9))

    first, second = bills(book, [kill(3.0), kill(8.0)])

    assert (first.paid_twice, second.paid_twice) == (1, 0)


def test_an_item_sent_again_that_was_never_paid_costs_nothing():
    """A request that was broken off before its first token was not billed."""
    book = ledger(("a", 1.0, 3.0, 0), ("a", 5.0, 6.0, 9))

    assert bills(book, [kill(3.0)])[0].paid_twice == 0


def test_the_bound_is_what_was_inside_and_the_answers_of_two_seconds():
    """At 10 s: one inside, one sent by the dying, an answer 1 s old, one 3 s old, one of the next life."""
    book = ledger(
        ("a", 9.0, 10.4, 2), ("b", 10.2, 10.4, 0), ("c", 8.0, 9.0, 9), ("d", 6.0, 7.0, 9), ("e", 15.0, 16.0, 9)
    )

    bill = bills(book, [kill(10.0)])[0]

    assert (bill.inside, bill.recent, bill.bound) == (2, 1, 3)
