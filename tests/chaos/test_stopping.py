"""Asked to stop, a driver finishes and keeps what is in flight: nothing is paid again (K5)."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from chaos.clusters import cluster
from chaos.watching import until
from witness import check_run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]

TITLE = "asked to stop"
GRACE = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}


@pytest.fixture
def head() -> Iterator[Any]:
    """A head with a dashboard, which is where jobs are submitted."""
    with cluster(cpus=2, dashboard=True) as made:
        yield made


def test_refused_beside_another_then_drained_then_completed(make_stage):
    """A second driver exits 75; Ctrl-C drains the first (130, nothing to pay again); the same command completes."""
    stage = make_stage(items=160)
    first = stage.start()
    until(stage.entries, what="the claim of the first")
    assert stage.start().wait() == 75, stage.said
    stage.until_answered(20, driver=first)
    first.send(signal.SIGINT)
    assert first.wait() == 130, stage.said
    drained = len(stage.done())

    assert stage.start().wait() == 0, stage.said
    assert 0 < drained < stage.items
    assert "evalpipe resume" in stage.said and "Traceback" not in stage.said
    assert stage.check().paid_twice == 0


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, id="SIGINT"),
    ],
)
def test_a_signal_drains_the_run(make_stage, tables, number: signal.Signals, code: int):
    """In the canaries, then in the middle: the exit code of the signal, nothing paid twice, and it can go on."""
    stage = make_stage(items=150)
    for wait in (3, 40):
        driver = stage.start()
        stage.until_answered(wait, driver=driver)
        driver.send(number)
        assert driver.wait() == code, stage.said
        assert check_run(stage.run, stage.ledger_path).paid_twice == 0

    assert stage.start().wait() == 0
    found = stage.check()
    assert found.paid_twice == 0 and not found.over_limit
    assert "evalpipe resume" in stage.said
    tables.add(TITLE, how=number.name, exit_code=code, paid_twice=found.paid_twice)


@pytest.mark.chaos
def test_a_second_signal_stops_at_once(make_stage, tables):
    """SIGINT twice: out in a second, at most what was in flight and not yet written is paid again."""
    stage = make_stage(items=100)
    driver = stage.start()
    stage.until_answered(30, driver=driver)
    driver.send(signal.SIGINT)
    stage.note("driver", "a second Ctrl-C", dying_s=1.0)
    driver.send(signal.SIGINT)
    assert driver.wait(5) == 130

    assert stage.start().wait() == 0, stage.said
    found, costs = stage.check(), stage.bills()
    assert found.paid_twice <= sum(bill.bound for bill in costs)
    tables.add(TITLE, how="SIGINT twice", exit_code=130, paid_twice=found.paid_twice, bound=costs[0].bound)


@pytest.mark.chaos
def test_a_stopped_job_drains_within_its_grace(head, make_stage, tables):
    """`ray job stop` with 60 s of grace: exit 143 with all that was in flight stored, and a second job goes on."""
    from ray.job_submission import JobStatus, JobSubmissionClient

    stage = make_stage(items=150, ray_address=head.address)
    jobs = JobSubmissionClient(f"http://{head.webui_url}")

    entrypoint = shlex.join([sys.executable, "-m", "evalpipe.cli.main", *stage.command()])

    def submit() -> str:
        accepted: list[str] = []

        def is_accepted() -> bool:
            with suppress(RuntimeError):  # the head's agent is not up yet
                accepted.append(jobs.submit_job(entrypoint=entrypoint, runtime_env={"env_vars": GRACE}))
            return bool(accepted)

        until(is_accepted, what="an agent that takes jobs")
        return accepted[0]

    def is_over(job: str) -> bool:
        return bool(jobs.get_job_status(job).is_terminal())

    def wait_for(job: str) -> int | None:
        until(lambda: is_over(job), what="the end of the job")
        return jobs.get_job_info(job).driver_exit_code

    stopped = submit()
    until(lambda: jobs.get_job_status(stopped) != JobStatus.PENDING, what="the job to start")
    until(lambda: stage.tail.look().answers >= 40 or is_over(stopped), what="40 answers")
    assert not is_over(stopped), jobs.get_job_logs(stopped)
    jobs.stop_job(stopped)
    wait_for(stopped)
    paid_twice = check_run(stage.run, stage.ledger_path).paid_twice
    again = submit()

    assert wait_for(again) == 0, jobs.get_job_logs(again)
    found = stage.check()
    tables.add(TITLE, how="ray job stop, 60 s", exit_code=jobs.get_job_status(stopped), paid_twice=found.paid_twice)
    assert len(stage.entries()) > 0 and paid_twice == found.paid_twice == 0
    assert "goes on" in jobs.get_job_logs(stopped) or "resume" in jobs.get_job_logs(stopped)
