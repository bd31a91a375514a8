"""Virtual time against closed forms, conservation laws and a witness that stands between cluster and server."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import pytest

from evalpipe.control.build import build_law
from evalpipe.control.law import Law
from evalpipe.errors import ConfigError
from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.cliff import Cliff, CliffParams
from evalpipe.sim.course import Course
from evalpipe.sim.engine import Event, Job, Rejection, ServerModel
from evalpipe.sim.profiles import profile
from evalpipe.sim.scenarios import SUITES
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

SHARED = Course("shared", profile("cliff-shared", sigma=0.15), 1_000, prompt_median=50, prompt_sigma=0)


class Witness:
    """A server that notes what each request found in flight, when it came, and what was done."""

    def __init__(self, model: ServerModel) -> None:
        self.model = model
        self.arrivals: list[tuple[float, int, int]] = []  # instant, job, in flight before it
        self.done: list[int] = []

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        self.arrivals.append((now, job.job_id, self.model.in_flight))
        return self.model.submit(job, now=now)

    def advance(self, now: float) -> list[Event]:
        events = self.model.advance(now)
        self.done += [event.job_id for event in events if event.kind == "done"]
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def constant_jobs(count: int, *, work: float = 1.0) -> list[Job]:
    return [Job(i, 50, 350, work) for i in range(count)]


def fixed(limit: int) -> Law:
    return build_law("fixed", start=limit)


def limits_in_force(run: VirtualRun, start: float, setup: VirtualSetup, now: float) -> list[int]:
    """Return the limits that a worker may go by at `now`: those of the last exchange, and of what it carried.

    A decision that just missed a worker's exchange reaches it with the next one: exchange_s after the last answer,
    which was half a lag under way, and with the next call, a whole lag.
    """
    moves = [(0.0, start), *((timed.at + setup.lag_s / 2, timed.change.new) for timed in run.changes)]
    at = [move[0] for move in moves]
    first = bisect.bisect_right(at, now - setup.exchange_s - 1.5 * setup.lag_s - 1e-9) - 1
    last = bisect.bisect_right(at, now + 1e-9) - 1
    return [int(limit) for _, limit in moves[max(first, 0) : last + 1]]


@pytest.mark.parametrize("limit", [1, 9, 45, 50])
def test_fixed_limit_below_the_cliff_takes_its_closed_form(limit: int):
    """450 jobs take 450 x 0.4 s / limit up to 45 in flight; above, 45 / 0.4 s are done a second whatever the limit."""
    run = run_virtual(fixed(limit), Cliff(CliffParams()), constant_jobs(450))

    assert run.makespan_s == pytest.approx(450 * 0.4 / min(limit, 45))
    assert (run.unfinished, run.rejections, run.peak_in_flight) == (0, 0, limit)


def test_fixed_limit_beyond_the_cliff_takes_its_closed_form():
    """63 in flight take 3.5 s each: 630 jobs are ten rounds."""
    run = run_virtual(fixed(63), Cliff(CliffParams()), constant_jobs(630))

    assert run.makespan_s == pytest.approx(35.0)


def test_many_workers_cost_little():
    """Eight workers that share 40 permits take at most 3 % longer than one."""
    run = run_virtual(fixed(40), Cliff(CliffParams()), constant_jobs(2_000), setup=VirtualSetup(workers=8))

    assert 2_000 * 0.4 / 40 <= run.makespan_s <= 1.03 * 2_000 * 0.4 / 40


def test_same_seed_same_run():
    """Two runs of one setup agree in every instant, also where 429s draw random delays."""
    runs = [
        run_virtual(fixed(64), SHARED.server(3), SHARED.draw(3), setup=VirtualSetup(workers=3, lag_s=0.01, seed=3))
        for _ in range(2)
    ]

    assert runs[0].rejections > 0
    assert np.array_equal(runs[0].done_at, runs[1].done_at)
    assert np.array_equal(runs[0].job_id, runs[1].job_id)


def test_another_seed_is_another_run():
    """The seed of the setup moves the retries and with them the whole run."""
    runs = [run_virtual(fixed(64), SHARED.server(3), SHARED.draw(3), setup=VirtualSetup(seed=seed)) for seed in (1, 2)]

    assert runs[0].makespan_s != runs[1].makespan_s


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("law", ["fixed", "aimd-published", "gradient"])
def test_every_job_finishes_exactly_once(law: str, workers: int):
    """However many 429s there are: each job is done once, and each attempt was a success or a rejection."""
    server = Witness(SHARED.server(0))

    run = run_virtual(build_law(law, start=64), server, SHARED.draw(0), setup=VirtualSetup(workers=workers))

    assert run.rejections > 0
    assert sorted(server.done) == list(range(SHARED.jobs))
    assert np.array_equal(np.sort(run.job_id), np.arange(SHARED.jobs))
    assert run.attempts == len(server.arrivals) == SHARED.jobs + run.rejections


@pytest.mark.parametrize("lag_s", [0.0, 0.03])
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("law", ["aimd-published", "gradient", "gradient-published", "bbr-published"])
def test_no_request_is_sent_at_or_above_the_limit(law: str, workers: int, lag_s: float):
    """I4: one exchange after a cut nothing is sent that finds the new limit in flight; before, none above the old."""
    server, setup = Witness(SHARED.server(0)), VirtualSetup(workers=workers, lag_s=lag_s)

    run = run_virtual(build_law(law, start=40), server, SHARED.draw(0), setup=setup)

    above = [(now, found) for now, _, found in server.arrivals if found >= max(limits_in_force(run, 40, setup, now))]
    assert above == []
    assert any(timed.change.new < timed.change.old for timed in run.changes)


def test_limit_smaller_than_the_number_of_workers():
    """Limit 2 and 8 workers: never more than 2 in flight, all jobs done, the permits hardly idle."""
    server = Witness(Cliff(CliffParams()))

    run = run_virtual(fixed(2), server, constant_jobs(500), setup=VirtualSetup(workers=8))

    assert max(found for _, _, found in server.arrivals) == 1
    assert run.unfinished == 0
    assert run.makespan_s < 1.2 * 500 * 0.4 / 2


@pytest.mark.parametrize("horizon_s", [200.0, 100_000.0])
def test_littles_law_holds(horizon_s: float):
    """The time average equals completions a second times mean latency within 2 %, in a run cut off as well."""
    course = SUITES["laws"].courses[0]

    run = run_virtual(
        build_law("gradient"), course.server(0), course.draw(0), setup=VirtualSetup(horizon_s=horizon_s, workers=2)
    )

    assert run.mean_in_flight == pytest.approx(run.littles_in_flight, rel=0.02)
    assert (run.unfinished > 0) == (horizon_s == 200.0)


def test_horizon_ends_a_run_and_says_what_is_left():
    """One at a time for 10 s: 25 jobs of 0.4 s are done, the rest is counted."""
    run = run_virtual(fixed(1), Cliff(CliffParams()), constant_jobs(100), setup=VirtualSetup(horizon_s=10.0))

    assert (run.makespan_s, len(run.done_at), run.unfinished) == (10.0, 25, 75)


def test_overhead_is_part_of_latency_and_of_in_flight():
    """A request that takes 0.1 s to reach the server holds its permit and its latency that much longer."""
    run = run_virtual(fixed(5), Cliff(CliffParams()), constant_jobs(50), setup=VirtualSetup(overhead_s=0.1))

    assert run.rtt_s == pytest.approx(0.5)
    assert run.makespan_s == pytest.approx(50 * 0.5 / 5)
    assert run.mean_in_flight == pytest.approx(5.0)


def test_retry_after_is_obeyed():
    """A job that a quota refuses comes back no sooner than the server asked."""
    quota = profile("quota-rpm", rpm=60, burst_s=1.0, window="fixed", window_s=30.0)
    server = Witness(quota.build(0))

    run = run_virtual(fixed(40), server, [Job(i, 10, 10) for i in range(40)])

    assert run.rejections > 0
    late = [now for now, job, _ in server.arrivals if job == 39]
    assert late[-1] >= 30.0


def test_recorded_tokens_are_those_of_the_server():
    """The recorder's tokens/s in steady state are the server's: 45 / 0.4 s x 350 output tokens."""
    run = run_virtual(fixed(45), Cliff(CliffParams()), constant_jobs(2_000), setup=VirtualSetup(workers=4))

    steady = [tick.tokens_per_s for tick in run.ticks if 3.0 < tick.at < 15.0]
    assert np.mean(steady) == pytest.approx(45 / 0.4 * 350, rel=0.03)


def test_throughput_variance_of_the_middle():
    """20 s with 3 and 5 completions in turn: the first and last 2 s do not count, variance 1, CV 1/4."""
    done_at = [second + 0.5 for second in range(20) for _ in range(100 if second < 2 else 3 + 2 * (second % 2))]

    variance, cv = finished_at(done_at).throughput_variance()

    assert (variance, cv) == (1.0, 0.25)


def test_job_that_can_never_run_is_refused():
    """A prompt larger than the server's memory is the scenario's mistake, not a reason to retry for ever."""
    server = Batching(BatchingParams(kv_tokens=160))

    with pytest.raises(ConfigError, match="job 0 can never run"):
        run_virtual(fixed(1), server, [Job(0, 1_000, 10)])


def test_repeated_job_ids_are_refused():
    """Two jobs of one id could not be told apart."""
    with pytest.raises(ConfigError, match="unique"):
        run_virtual(fixed(1), Cliff(CliffParams()), [Job(1, 1, 1), Job(1, 1, 1)])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"workers": 0}, "workers"), ({"exchange_s": 0.0}, "exchange_s"), ({"lag_s": -0.1}, "lag_s")],
)
def test_impossible_setup_is_refused(options: dict[str, Any], message: str):
    """A setup that cannot be says which number is wrong."""
    with pytest.raises(ConfigError, match=message):
        VirtualSetup(**options)


def finished_at(done_at: list[float]) -> VirtualRun:
    """A run of which only the completions matter."""
    count = len(done_at)
    return VirtualRun(
        makespan_s=20.0,
        job_id=np.arange(count),
        done_at=np.array(done_at),
        rtt_s=np.ones(count),
        ttft_s=np.ones(count),
        work=np.ones(count),
        rejections=0,
        attempts=count,
        unfinished=0,
        peak_in_flight=1,
        mean_in_flight=1.0,
        preemptions=0,
        ticks=[],
        changes=[],
    )


def test_what_waits_too_long_is_overdue():
    """16 on a server of 4 slots: about 12 wait, and but for those that came last are overdue; 4 never are."""
    course = Course("small", profile("vllm", slots=4), 200)

    crowded, roomy = (run_virtual(fixed(limit), course.server(0), course.draw(0)) for limit in (16, 4))

    assert np.median([tick.overdue for tick in crowded.ticks[20:-20]]) >= 10
    assert all(tick.overdue <= tick.waiting for tick in crowded.ticks)
    assert max(tick.overdue for tick in roomy.ticks) == 0


def test_preempted_streams_are_stalled_and_go_on():
    """Memory for about 8 of 24 streams: some that began are silent for more than a second; at the end none is."""
    course = Course("memory", profile("vllm", kv_tokens=6_000, median=500.0, sigma=0.3), 120, prompt_sigma=0.3)

    run = run_virtual(fixed(24), course.server(0), course.draw(0))

    assert run.preemptions > 0
    assert max(tick.stalled for tick in run.ticks) > 0
    assert run.ticks[-1].stalled == 0


def test_first_token_times_are_within_the_latency():
    """Each answer has both, and on a roomy server the first token comes within a tenth of a second."""
    course = Course("roomy", profile("vllm"), 200)

    run = run_virtual(fixed(8), course.server(0), course.draw(0))

    assert ((run.ttft_s > 0) & (run.ttft_s <= run.rtt_s)).all()
    assert np.median(run.ttft_s) < 0.1
