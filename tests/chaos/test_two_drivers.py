"""Two drivers on one run, in eight ways: one works, the other leaves without sending, or is sent away by --takeover."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from chaos.clusters import cluster
from chaos.drivers import Driver
from chaos.leftovers import is_stopped
from chaos.stage import LIMIT, Stage
from chaos.watching import until

from evalpipe.sim.ledger import Arrival
from evalpipe.store.entry import Entry

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(200)]

OTHER = 12  # the second driver's limit: its requests carry it
STOPS_WITHIN_S = 5.0
TITLE = "two drivers on one run"


@pytest.fixture
def another_head() -> Iterator[Any]:
    with cluster(cpus=2) as made:
        yield made


def sent_with(stage: Stage, limit: int) -> list[Arrival]:
    return [arrival for arrival in stage.ledger().arrivals if arrival.limit == limit]


def stand_still(driver: Driver) -> None:
    driver.send(signal.SIGSTOP)
    until(lambda: is_stopped(driver.pid), within_s=5, what="SIGSTOP to take effect")


def claim_of(stage: Stage, epoch: int) -> Entry:
    """Wait for the claim of an epoch; return it. Its mono is this machine's monotonic clock."""

    def claims() -> list[Entry]:
        return [entry for entry in stage.entries() if entry.claim is not None and entry.epoch == epoch]

    until(claims, what=f"the claim of epoch {epoch}")
    return claims()[0]


def check_takeover(stage: Stage, tables, way: str, first: Driver, *, told_at: float | None = None) -> None:
    """Assert that the first left with 75 within 5 s, and that nothing of it came to the server later than that.

    told_at: when it could first learn of it, None: at the claim.
    """
    claimed_at = claim_of(stage, 2).mono
    could_know_at = claimed_at if told_at is None else told_at
    code = first.wait()
    stopped_s = time.monotonic() - could_know_at
    last = max((arrival.t for arrival in sent_with(stage, LIMIT)), default=claimed_at)
    late = [a for a in sent_with(stage, LIMIT) if a.t > claimed_at + STOPS_WITHIN_S]
    tables.add(
        TITLE,
        way=way,
        first=code,
        second="works",
        **{"first gone after s": f"{stopped_s:.1f}", "its last request after s": f"{last - claimed_at:.1f}"},
    )
    assert code == 75, stage.said
    assert stopped_s <= STOPS_WITHIN_S
    assert not late


def test_the_second_leaves_while_the_first_works(make_stage, tables):
    """It watches the first's counter, sends nothing, says who works, and exits 75."""
    stage = make_stage()
    first = stage.start()
    stage.until_answered(5)
    second = stage.start(limit=OTHER)

    assert second.wait() == 75, stage.said
    assert not first.is_over, "the first was over: this showed nothing"
    assert first.wait() == 0
    assert sent_with(stage, OTHER) == []
    assert f"pid {first.pid} on " in stage.said
    stage.check()
    tables.add(TITLE, way="second while the first works", first=0, second=75)


@pytest.mark.short
def test_of_two_at_the_same_moment_one_works(make_stage, tables):
    """Both find a fresh folder; one of them claims it, the other exits 75 without a request."""
    stage = make_stage(items=100)
    both = {LIMIT: stage.start(), OTHER: stage.start(limit=OTHER)}

    codes = {limit: driver.wait() for limit, driver in both.items()}
    assert sorted(codes.values()) == [0, 75], stage.said
    loser = next(limit for limit, code in codes.items() if code == 75)
    assert sent_with(stage, loser) == []
    stage.check()
    tables.add(TITLE, way="both at the same moment", first=codes[LIMIT], second=codes[OTHER])


def test_a_takeover_in_the_middle_sends_the_first_away(make_stage, tables):
    """--takeover: the first exits 75 within 5 s of the claim and sends nothing later; the second completes the run."""
    stage = make_stage()
    first = stage.start()
    stage.until_answered(5)
    second = stage.start("--takeover", limit=OTHER)

    check_takeover(stage, tables, "--takeover in the middle", first)
    assert second.wait() == 0, stage.said
    stage.check(has_zombies=True)


def test_a_takeover_from_another_cluster_needs_nothing_but_the_store(another_head, make_stage, tables):
    """The second runs on another Ray: the log is all that the two share, and it is enough."""
    stage = make_stage(server={"median": 180.0, "max_output": 400})
    first = stage.start()
    stage.until_answered(5)
    second = stage.start("--takeover", limit=OTHER, ray_address=another_head.address)

    check_takeover(stage, tables, "--takeover, another cluster", first)
    assert second.wait() == 0, stage.said
    stage.check(has_zombies=True)


def test_a_driver_that_wakes_up_after_a_takeover_leaves(make_stage, tables):
    """SIGSTOP of the first, --takeover, SIGCONT: the zombie notices at once and its workers send nothing more."""
    stage = make_stage(workers=1)  # the workers of the first keep their core until it wakes up
    first = stage.start()
    stage.until_answered(20)
    stand_still(first)
    second = stage.start("--takeover", limit=OTHER)
    until(lambda: len(sent_with(stage, OTHER)) > 20, what="requests of the second")
    first.send(signal.SIGCONT)

    check_takeover(stage, tables, "--takeover while the first stands still", first, told_at=time.monotonic())
    assert second.wait() == 0, stage.said
    stage.check(has_zombies=True)


def test_a_takeover_during_compaction_leaves_one_set_of_parts(make_stage, tables):
    """The first stands still while it writes parts/; the second makes them; the first wakes up and adds nothing."""
    stage = make_stage(items=100)
    first = stage.start()
    stage.until_parts(driver=first)
    stand_still(first)

    assert stage.start("--takeover", limit=OTHER).wait() == 0, stage.said
    first.send(signal.SIGCONT)
    check_takeover(stage, tables, "--takeover during compaction", first, told_at=time.monotonic())
    assert sent_with(stage, OTHER) == []
    stage.check()


@pytest.mark.parametrize("way", ["kill -9", "Ctrl-C"])
def test_after_a_driver_that_is_surely_gone_nobody_waits(make_stage, tables, way: str):
    """Dead on this host, or gone with a goodbye: the second goes on at once, without the watch of 20 s."""
    stage = make_stage()
    first = stage.start()
    stage.until_answered(20)
    first.send(signal.SIGKILL if way == "kill -9" else signal.SIGINT)
    code = first.wait()
    began = time.monotonic()
    second = stage.start(limit=OTHER)
    until(lambda: sent_with(stage, OTHER), what="the second to send")
    began_to_send_s = time.monotonic() - began

    assert second.wait() == 0, stage.said
    assert code == (-9 if way == "kill -9" else 130)
    assert "watching up to" not in stage.said
    # workers outlive a killed driver by a moment and may send one more; none when the second has begun
    assert max(a.t for a in sent_with(stage, LIMIT)) < min(a.t for a in sent_with(stage, OTHER))
    stage.check()
    tables.add(TITLE, way=f"first gone by {way}", first=code, second=0, sends_after_s=f"{began_to_send_s:.1f}")


def test_a_dead_driver_of_another_host_is_watched_first(make_stage, tables):
    """Its pid says nothing here: the second watches its counter for 20 s, says so, then goes on."""
    stage = make_stage(items=100)
    first = stage.start(host="elsewhere")
    stage.until_answered(20)
    first.kill()
    began = time.monotonic()
    second = stage.start(limit=OTHER)
    stage.until_sent(driver=second)
    waited_s = time.monotonic() - began

    assert second.wait() == 0, stage.said
    assert "elsewhere" in stage.said and "watching up to" in stage.said
    assert waited_s >= 20.0
    stage.check()
    tables.add(TITLE, way="first died on another host", first=-9, second=0, sends_after_s=f"{waited_s:.1f}")
