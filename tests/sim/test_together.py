"""Virtual time with more than one run, and with what may lie between a run and its server."""

from __future__ import annotations

import numpy as np
import pytest

from evalpipe.control.build import build_law
from evalpipe.errors import ConfigError
from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.cliff import Cliff, CliffParams
from evalpipe.sim.course import renumbered
from evalpipe.sim.engine import Job
from evalpipe.sim.gateway import Delay, Gateway
from evalpipe.sim.trouble import Outage, Paces
from evalpipe.sim.virtual import Party, run_together, run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

ROOMY = CliffParams(safe=1_000, flat_until=1_000, reject_above=1_000)


def constant(count: int, first_id: int = 0) -> list[Job]:
    return renumbered([Job(i, 50, 350) for i in range(count)], first_id)


def party(limit: int, jobs: list[Job], **options: object) -> Party:
    is_guest = bool(options.pop("is_guest", False))
    return Party(build_law("fixed", start=limit), jobs, VirtualSetup(**options), is_guest=is_guest)


def alone(limit: int, jobs: list[Job], model=None, **options: object) -> VirtualRun:
    return run_together([party(limit, jobs, **options)], model or Cliff(ROOMY))[0]


def test_two_runs_share_a_server_by_what_they_have_in_flight():
    """30 and 15 in flight on 45 safe ones: each as fast as alone, so the first does twice as much a second."""
    first, second = run_together([party(30, constant(600)), party(15, constant(300, 10_000))], Cliff(CliffParams()))

    assert first.makespan_s == pytest.approx(600 * 0.4 / 30)
    assert second.makespan_s == pytest.approx(300 * 0.4 / 15)
    assert set(first.job_id) == set(range(600))
    assert set(second.job_id) == set(range(10_000, 10_300))


def test_nobody_waits_for_a_guest():
    """The world ends with our run; the guest has what it got until then."""
    ours, guest = run_together(
        [party(10, constant(100)), party(5, constant(10_000, 50_000), is_guest=True)], Cliff(ROOMY)
    )

    assert (ours.unfinished, ours.makespan_s) == (0, pytest.approx(4.0))
    assert len(guest.job_id) == pytest.approx(50, abs=5)
    assert guest.unfinished == 10_000 - len(guest.job_id)


def test_a_latecomer_counts_from_its_start():
    """A run that starts at second 3 and takes 4 has a makespan of 4 and ends at 7."""
    _, late = run_together([party(10, constant(300)), party(10, constant(100, 1_000), starts_at_s=3.0)], Cliff(ROOMY))

    assert late.makespan_s == pytest.approx(4.0)
    assert late.done_at.min() == pytest.approx(3.4)
    assert late.mean_in_flight == pytest.approx(10.0)


def test_runs_may_not_share_job_ids():
    """Their answers could not be told apart."""
    with pytest.raises(ConfigError, match="unique"):
        run_together([party(1, constant(5)), party(1, constant(5, 4))], Cliff(ROOMY))


def test_each_run_counts_its_own_tokens():
    """Tokens a second that a controller sees are those of its run, not of all that use the server."""
    first, second = run_together([party(30, constant(1_500)), party(10, constant(500, 10_000))], Cliff(ROOMY))

    rates = [np.mean([tick.tokens_per_s for tick in run.ticks if 3 < tick.at < 17]) for run in (first, second)]
    assert rates == [pytest.approx(30 / 0.4 * 350, rel=0.05), pytest.approx(10 / 0.4 * 350, rel=0.05)]


def test_a_delay_comes_and_goes():
    """0.1 s on the way, 0.3 s more between second 4 and 8: latencies are 0.5, then 0.8, then 0.5 s."""
    gateway = Gateway(delays=(Delay(0.1), Delay(0.3, 4.0, 8.0)))

    run = alone(1, constant(20), gateway=gateway)

    sent_at = run.done_at - run.rtt_s
    is_slow = (sent_at >= 4.0 - 1e-9) & (sent_at < 8.0 - 1e-9)
    assert run.rtt_s[is_slow] == pytest.approx(0.8)
    assert run.rtt_s[~is_slow] == pytest.approx(0.5)


def test_noise_of_a_gateway_is_lognormal():
    """Median and spread of what a request takes beyond the server's own time are as given."""
    run = alone(500, constant(4_000), gateway=Gateway(noise_s=1.0, noise_sigma=0.5))

    logs = np.log(run.rtt_s - 0.4)
    assert np.median(logs) == pytest.approx(0.0, abs=0.05)
    assert np.std(logs) == pytest.approx(0.5, rel=0.05)


def test_a_buffering_proxy_shows_no_first_token():
    """The answer and its first token come together, and control never sees a stream begin."""
    run = alone(20, constant(200), gateway=Gateway(is_buffering=True))

    assert run.ttft_s == pytest.approx(run.rtt_s)
    assert all(tick.waiting == tick.in_flight for tick in run.ticks[:-1])
    assert run.first_peak == 20


def test_a_model_that_thinks_shows_its_first_token_later():
    """One that is silent for 0.2 s of 0.4 s: the first token is seen 0.2 s after it was made, at 0.04 s."""
    run = alone(5, constant(100), gateway=Gateway(silent_s=0.2))

    assert run.ttft_s == pytest.approx(0.24)


def test_a_deadline_breaks_off_and_tries_again():
    """A server that stands still from second 1 to 6: what it has then is broken off after a second, and done later."""
    model = Paces(((1.0, 0.0), (6.0, 1.0))).around(Cliff(ROOMY))

    run = alone(10, constant(100), model, deadline_s=1.0)

    assert run.unfinished == 0
    assert run.failures >= 10
    assert (run.rejections, run.attempts) == (0, 100 + run.failures)
    assert run.rtt_s.max() <= 1.0


def test_an_unreachable_server_is_probed_and_not_stormed():
    """30 s without a connection: what was inside is lost once, then the breaker lets a few probes through."""
    model = Outage(5.0, 30.0, is_reachable=False).around(Cliff(ROOMY))

    run = alone(20, constant(2_000), model)

    assert run.unfinished == 0
    assert 20 + 8 <= run.failures <= 20 + 8 + 30
    assert all(5.0 <= at <= 35.0 for at in run.failed_at)


def test_a_crash_costs_what_was_inside():
    """Every job is answered once in the end, and those that were lost have been sent twice."""
    run = alone(20, constant(500), Outage(3.0, 0.5).around(Cliff(ROOMY)))

    assert sorted(run.job_id) == list(range(500))
    assert run.failures == 20
    assert run.attempts == 500 + run.failures + run.rejections


def test_busy_time_is_counted_until_the_backlog_is_empty():
    """Four on four slots keep them busy; eight do too, but two leave half of them idle."""
    shares = []
    for limit in (2, 4, 8):
        run = alone(limit, [Job(i, 10, 200) for i in range(60)], Batching(BatchingParams(slots=4)))
        shares.append(run.running_s / (4 * run.dispatched_s))

    assert shares == [pytest.approx(0.5, abs=0.03), pytest.approx(1.0, abs=0.03), pytest.approx(1.0, abs=0.03)]


def test_the_queue_of_the_server_is_recorded():
    """Twelve on four slots: about eight wait, at each look."""
    run = alone(12, [Job(i, 10, 200) for i in range(120)], Batching(BatchingParams(slots=4)))

    at, waiting = run.queue[:, 0], run.queue[:, 1]
    assert np.diff(at).min() >= 0.5 - 1e-9
    assert np.median(waiting) == pytest.approx(8, abs=1)


@pytest.mark.parametrize("workers", [1, 64, 256])
def test_any_number_of_workers_does_all_jobs(workers: int):
    """More workers than permits take turns; nobody starves, nothing is done twice."""
    setup = VirtualSetup(workers=workers, lag_s=0.25)

    run = run_virtual(build_law("fixed", start=40), Cliff(ROOMY), constant(600), setup=setup)

    assert sorted(run.job_id) == list(range(600))
    assert run.peak_in_flight <= 40


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: Gateway(noise_s=-1.0), "at least 0"), (lambda: VirtualSetup(deadline_s=0.0), "deadline_s")],
)
def test_impossible_surroundings_are_refused(make, message: str):
    """What cannot be says which number is wrong."""
    with pytest.raises(ConfigError, match=message):
        make()
