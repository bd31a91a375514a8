"""The ledger: written once, read back, judged."""

from __future__ import annotations

from evalpipe.sim.ledger import Arrival, Departure, LedgerKey, LedgerWriter, read_ledger


def arrival(
    number: int, *, t: float = 0.0, limit: int | None = 4, in_flight: int = 0, item: str = "a", epoch: int = 0
) -> Arrival:
    return Arrival(f"id{number}", t, "run", item, 0, 0, 1, epoch, limit, in_flight, 200)


def test_round_trip(tmp_path):
    """What was written is read back, and the answers are found by key."""
    writer = LedgerWriter(tmp_path / "l.jsonl")
    writer.arrive(arrival(1))
    writer.arrive(arrival(2, in_flight=1))
    writer.done(Departure("id2", 1.0, "cut", output_tokens=3))
    writer.done(Departure("id1", 1.5, "completed", "ab12", True, 10, 20))
    writer.close()

    ledger = read_ledger(tmp_path / "l.jsonl")

    assert ledger.arrivals == (arrival(1), arrival(2, in_flight=1))
    assert ledger.departures["id1"] == Departure("id1", 1.5, "completed", "ab12", True, 10, 20)
    assert ledger.answers() == {LedgerKey("a", 0, 0): [("ab12", True)]}
    assert ledger.paid() == {LedgerKey("a", 0, 0): 2}
    assert (ledger.high_water, ledger.torn_lines) == (2, 0)


def test_torn_last_line_is_counted_and_closed_off(tmp_path):
    """A line that a kill cut short costs that line alone, also after the next server goes on behind it."""
    path = tmp_path / "l.jsonl"
    for number in (1, 2):
        writer = LedgerWriter(path)
        writer.arrive(arrival(number))
        writer.close()
        with path.open("ab") as file:
            file.write(b'{"event":"arrive","id":"to')

    ledger = read_ledger(path)

    assert [a.id for a in ledger.arrivals] == ["id1", "id2"]
    assert ledger.torn_lines == 2


def test_one_run_is_picked_out(tmp_path):
    """Several runs may share a server."""
    writer = LedgerWriter(tmp_path / "l.jsonl")
    writer.arrive(arrival(1))
    writer.done(Departure("id1", 1.0, "completed", "x"))
    writer.close()

    assert len(read_ledger(tmp_path / "l.jsonl", run="run").departures) == 1
    assert read_ledger(tmp_path / "l.jsonl", run="other").departures == {}


def violations(tmp_path, *arrivals: Arrival) -> list[str]:
    writer = LedgerWriter(tmp_path / "l.jsonl")
    for one in arrivals:
        writer.arrive(one)
    writer.close()
    return [a.id for a in read_ledger(tmp_path / "l.jsonl").limit_violations(window_s=1.0)]


def test_arrival_within_its_limit_is_no_violation(tmp_path):
    """To find limit - 1 inside fills the last place."""
    assert violations(tmp_path, arrival(1, in_flight=3), arrival(2, limit=None, in_flight=99)) == []


def test_arrival_that_finds_the_limit_inside_is_a_violation(tmp_path):
    """To find as many as the limit is one too many."""
    assert violations(tmp_path, arrival(1, in_flight=4)) == ["id1"]


def test_cut_is_judged_after_the_window(tmp_path):
    """For a second after the last permit of the old limit its number counts, then no longer."""
    assert violations(
        tmp_path,
        arrival(1, t=0.0, limit=8),
        arrival(2, t=0.9, limit=4, in_flight=6),
        arrival(3, t=1.1, limit=4, in_flight=6),
    ) == ["id3"]


def test_a_client_that_did_not_hear_of_a_cut_is_a_violation(tmp_path):
    """Stamps of the old epoch justify nothing once the new one has been out for longer than the window."""
    assert violations(
        tmp_path,
        arrival(1, t=0.0, limit=8, epoch=0),
        arrival(2, t=0.5, limit=2, epoch=1),
        arrival(3, t=1.4, limit=8, epoch=0, in_flight=6),
        arrival(4, t=1.6, limit=8, epoch=0, in_flight=6),
    ) == ["id4"]
