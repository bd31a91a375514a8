"""What happens to a server: outages, standing still, another pace, another size, each against its closed form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.errors import ConfigError
from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.cliff import Cliff, CliffParams
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.trouble import LOST, Outage, Paces, Sizes

ROOMY = CliffParams(base_s=1.0)


def jobs(count: int, work: float = 1.0) -> list[Job]:
    return [Job(i, 10, 100, work) for i in range(count)]


def live(model: ServerModel, until: float) -> list[Event]:
    """Advance from event to event, as both faces do."""
    events: list[Event] = []
    while (at := model.next_event_at()) <= until:
        events += model.advance(at)
    return events + model.advance(until)


def ends(events: list[Event], kind: str = "done") -> dict[int, float]:
    return {event.job_id: event.at for event in events if event.kind == kind}


@pytest.mark.parametrize("is_reachable", [True, False])
def test_outage_loses_what_is_inside_and_refuses_what_comes(is_reachable: bool):
    """From second 5 on, for 10: the job inside fails, a new one is refused, and after it all is as before."""
    model = Outage(5.0, 10.0, is_reachable=is_reachable).around(Cliff(ROOMY))
    model.submit(jobs(1, work=8.0)[0], now=0.0)

    events = live(model, 6.0)
    refused = model.submit(Job(1, 10, 100), now=6.0)
    live(model, 15.0)
    taken = model.submit(Job(2, 10, 100), now=15.0)

    assert events[-1] == Event("failed", 0, 5.0, LOST)
    assert refused == Rejection(
        503 if is_reachable else 0, None, "service_unavailable" if is_reachable else "connect_failed"
    )
    assert taken is None
    assert ends(live(model, 20.0)) == {2: pytest.approx(16.0)}


def test_outage_spares_what_ended_before():
    """A job that was done at second 1 is not lost at second 5."""
    model = Outage(5.0, 1.0).around(Cliff(ROOMY))
    model.submit(jobs(1)[0], now=0.0)

    events = live(model, 10.0)

    assert [event.kind for event in events] == ["first_token", "done"]
    assert model.in_flight == 0


def test_standing_still_moves_every_end_by_as_much():
    """20 s at pace 0 in the middle of a job of 4 s: it ends 20 s later, and its first token is where it was."""
    model = Paces(((2.0, 0.0), (22.0, 1.0))).around(Cliff(ROOMY))
    model.submit(jobs(1, work=4.0)[0], now=0.0)

    events = live(model, 60.0)

    assert ends(events, "first_token") == {0: pytest.approx(0.4)}
    assert ends(events) == {0: pytest.approx(24.0)}


def test_half_the_pace_takes_twice_as_long():
    """From second 2 on at half pace: a job of 4 s has 2 s left then, which take 4."""
    model = Paces(((2.0, 0.5),)).around(Cliff(ROOMY))
    model.submit(jobs(1, work=4.0)[0], now=0.0)

    assert ends(live(model, 60.0)) == {0: pytest.approx(6.0)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.0, 3.0)), min_size=1, max_size=6),
    st.floats(0.1, 3.0),
    st.integers(1, 60),
)
def test_a_pace_changes_when_but_not_what(changes: list[tuple[float, float]], last: float, count: int):
    """Whatever the schedule: the same events in the same order, at instants that never fall, none left for ever."""
    at, steps = 0.0, []
    for gap_s, factor in changes:
        at += gap_s
        steps.append((at, factor))
    paced, plain = Paces((*steps, (at + 1.0, last))).around(Cliff(ROOMY)), Cliff(ROOMY)
    for model in (paced, plain):
        for job in jobs(count, work=1.3):
            model.submit(job, now=0.0)

    told, expected = live(paced, 1e4), live(plain, 1e4)

    assert [(e.kind, e.job_id) for e in told] == [(e.kind, e.job_id) for e in expected]
    assert [e.at for e in told] == sorted(e.at for e in told)
    assert paced.in_flight == 0


def test_a_smaller_batching_server_lets_what_runs_finish():
    """8 slots become 4: the 8 that run go on, and nobody is admitted until 4 of them are done."""
    model = Sizes(((1.0, 0.5),)).around(Batching(BatchingParams(slots=8)))
    for job in [Job(i, 10, 200 if i < 4 else 400) for i in range(8)] + [Job(i, 10, 10) for i in (8, 9)]:
        model.submit(job, now=0.0)

    live(model, 1.5)
    running_before = model.running
    first_done = min(ends(live(model, 2.2)).values(), default=0.0)

    assert (running_before, model.running) == (8, 4)
    assert first_done > 1.5
    assert ends(live(model, 30.0)).keys() >= {8, 9}


def test_a_smaller_cliff_collapses_sooner_and_grows_back():
    """45 in flight are safe on the whole server and collapse on half of it."""
    model = Sizes(((1.0, 0.5), (2.0, 1.0))).around(Cliff(CliffParams(base_s=4.0, collapsed_s=40.0)))
    for job in jobs(45):
        model.submit(job, now=0.0)

    done = ends(live(model, 60.0))

    # a second at 1/4, a second at 1/40, the rest at 1/4
    assert list(done.values()) == pytest.approx([2.0 + (1 - 1 / 4 - 1 / 40) * 4] * 45)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Outage(0.0, 5.0), "starts and lasts"),
        (lambda: Paces(((5.0, 1.0), (2.0, 1.0))), "in order"),
        (lambda: Paces(((5.0, 0.0),)), "last one above"),
    ],
)
def test_impossible_trouble_is_refused(make, message: str):
    """A schedule that cannot be says which number is wrong."""
    with pytest.raises(ConfigError, match=message):
        make()
