"""5,000 items on three hosts: undisturbed, with a host cut off for 20 s, with a host lost."""

from __future__ import annotations

import math
import subprocess
import time
from dataclasses import replace

import pytest
from cluster.hosts import HOSTS, THIRD, Hosts
from cluster.network import LAN
from cluster.outcome import Outcome, last_sent, read_outcome

from evalpipe import open_run
from evalpipe.errors import EvalPipeError
from evalpipe.store.log import read_state
from evalpipe.store.verify import verify

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

TTL_S, CUT_S = 15.0, 20.0
SLACK_S = 0.5  # of a request on its way and of the two clock readings around `ip`


def until_answered(hosts: Hosts, name: str, count: int, driver: subprocess.Popen[bytes]) -> None:
    while driver.poll() is None:
        try:
            if read_state(open_run(hosts.runs / name).store).counts.ok >= count:
                return
        except EvalPipeError:  # not begun yet
            pass
        time.sleep(0.2)  # another process is watched
    raise AssertionError(f"the driver ended before {count} answers: {said(hosts, name)}")


def said(hosts: Hosts, name: str) -> str:
    return (hosts.folder / f"{name}.log").read_text(errors="replace")[-3000:]


def one_node_in_flight(hosts: Hosts) -> int:
    """What one node may lose: its share of the limit, and the answers of two seconds that no file holds yet."""
    share = hosts.settings.limit / len(HOSTS)
    return math.ceil(share + 2.0 * share / hosts.settings.latency_s)


def check(hosts: Hosts, name: str, outcome: Outcome, code: int) -> None:
    items, witness = hosts.settings.items, outcome.witness
    assert code == 0, said(hosts, name)
    assert (witness.rows, witness.answered) == (items, items)
    assert not witness.over_limit, (
        f"{len(witness.over_limit)} requests above the limit, high water {witness.high_water}"
    )
    assert witness.is_clean, witness
    assert witness.paid_twice <= one_node_in_flight(hosts)
    assert verify(open_run(hosts.runs / name).store).is_complete


@pytest.fixture(scope="module")
def undisturbed(hosts: Hosts) -> Outcome:
    driver = hosts.start_driver("calm")
    until_answered(hosts, "calm", 100, driver)
    spread = [hosts.workers_on(host) for host in HOSTS]
    code = driver.wait()

    outcome = read_outcome("undisturbed", hosts.runs / "calm", hosts.ledger)
    check(hosts, "calm", outcome, code)
    assert spread == [1, 1, 1]
    assert outcome.witness.paid_twice == 0
    return outcome


def test_a_full_run_uses_all_three_nodes(undisturbed: Outcome, report: list[Outcome]):
    """Every item exactly once, one worker a node, and each sent its part under the one limit."""
    report.append(undisturbed)
    shares = [list(undisturbed.senders.values()).count(name) for name in set(undisturbed.senders.values())]

    assert len(shares) == len(HOSTS)
    assert min(shares) > 0.2 * sum(shares)


def test_a_node_cut_off_stops_sending_within_its_lease(hosts: Hosts, undisturbed: Outcome, report: list[Outcome]):
    """Its cable pulled for 20 s, the server in reach: silent after the TTL, never above the limit, hardly later."""
    driver = hosts.start_driver("cut")
    until_answered(hosts, "cut", hosts.settings.items // 10, driver)
    zombies = hosts.workers_on(THIRD)
    with hosts.network.unplugged(THIRD, LAN):
        down_at = time.monotonic()
        time.sleep(CUT_S)  # the disturbance itself
        up_at = time.monotonic()
    code = driver.wait()

    outcome = read_outcome("a node cut off for 20 s", hosts.runs / "cut", hosts.ledger, undisturbed=undisturbed)
    sent = last_sent(outcome, before=up_at)
    silent = [at - down_at for at in sent.values() if down_at < at < up_at - 2.0]
    report.append(replace(outcome, zombies_stopped_s=max(silent, default=None)))
    check(hosts, "cut", outcome, code)
    assert len(silent) == zombies == 1, {name: at - down_at for name, at in sent.items()}
    assert TTL_S / 2 < silent[0] <= TTL_S + SLACK_S, "it must have had work, and have stopped all the same"
    assert outcome.seconds <= 1.15 * undisturbed.seconds + TTL_S


def test_a_node_lost_for_good_costs_its_requests_only(hosts: Hosts, undisturbed: Outcome, report: list[Outcome]):
    """kill -9 of a raylet in the middle: the same command completes on two nodes; only what was in flight is resent."""
    driver = hosts.start_driver("lost")
    until_answered(hosts, "lost", hosts.settings.items // 2, driver)
    hosts.kill_raylet(THIRD)
    code = driver.wait()

    outcome = read_outcome("a node lost", hosts.runs / "lost", hosts.ledger, undisturbed=undisturbed)
    report.append(outcome)
    check(hosts, "lost", outcome, code)
    assert outcome.seconds <= 1.15 * undisturbed.seconds + TTL_S
