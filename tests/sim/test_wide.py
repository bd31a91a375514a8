"""Servers of many kinds: the draws are what they say, and `progress` is near the best fixed limit on each kind.

BEST holds best fixed limits as `evalpipe sim race --suite wide` finds them; a search takes minutes, one run of each a
second.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalpipe.control.build import build_law
from evalpipe.sim import wide
from evalpipe.sim.batching import BatchingParams
from evalpipe.sim.course import Course
from evalpipe.sim.decode import blocks_of
from evalpipe.sim.profiles import profile
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

# kind and draw: (best fixed limit, most over its makespan, most over its median time to the first token)
BEST = {
    ("4 slots", 0): (6, 1.03, 2.0),
    ("8 slots", 1): (10, 1.03, 2.0),
    ("64 slots", 1): (67, 1.05, 2.0),
    ("prompt shift", 0): (50, 1.03, 2.0),
    ("prefill-bound", 1): (24, 1.08, 2.0),
    ("plateau", 0): (520, 1.10, 2.0),
}


def run(course: Course, law: str, **options: float) -> VirtualRun:
    return run_virtual(build_law(law, **options), course.server(0), course.draw(0), setup=VirtualSetup(horizon_s=5e3))


@pytest.mark.parametrize("kind", wide.KINDS)
def test_a_draw_is_the_same_each_time_and_unlike_the_next(kind: str):
    """Server and jobs follow from kind and number alone."""
    one, again, other = wide.draw(kind, 0), wide.draw(kind, 0), wide.draw(kind, 1)

    assert one == again
    assert one.profile.server != other.profile.server
    assert one.draw(3)[:50] == again.draw(3)[:50]


@pytest.mark.parametrize("kind", wide.KINDS)
def test_every_job_fits_its_server(kind: str):
    """No draw holds a prompt and an answer that the server's memory could never take."""
    for number in range(5):
        course = wide.draw(kind, number)
        server = course.profile.server
        if isinstance(server, BatchingParams):
            longest = max(job.prompt_tokens + job.output_tokens for job in course.draw(0))
            assert blocks_of(longest) <= server.kv_tokens // 16


def test_unequal_replicas_differ_in_speed():
    """One request alone takes its time over the speed of the server it meets."""
    course = Course("pair", profile("vllm", sigma=0.0), 2, prompt_sigma=0.0, speeds=(1.0, 0.5))

    rtts = run(course, "fixed", start=2).rtt_s

    assert max(rtts) == pytest.approx(2 * min(rtts))


def test_shifted_prompts_begin_half_way():
    """The first half of the jobs is as without a shift."""
    course = Course("shift", profile("vllm"), 100, prompt_median=50, prompt_sigma=0.0, shifted_median=1_000)

    assert [job.prompt_tokens for job in course.draw(0)] == [50] * 50 + [1_000] * 50


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), BEST)
def test_progress_is_near_the_best_fixed_limit(kind: str, number: int):
    """Makespan and median time to the first token stay within the stated ratios, from a cold start at 2."""
    limit, over_makespan, over_ttft = BEST[kind, number]
    course = wide.draw(kind, number)

    best, ours = run(course, "fixed", start=limit), run(course, "progress")

    assert ours.unfinished == 0
    assert ours.makespan_s <= over_makespan * best.makespan_s
    assert sorted(ours.ttft_s)[len(ours.ttft_s) // 2] <= over_ttft * sorted(best.ttft_s)[len(best.ttft_s) // 2]


@pytest.mark.parametrize(("slots", "most"), [(1, 5), (4, 8), (8, 16)])
def test_small_servers_are_not_overrun(slots: int, most: int):
    """At most twice the slots are ever in flight; on a single one a few, while short answers make the queue move."""
    course = Course("small", profile("vllm", slots=slots), 40 * slots)

    assert run(course, "progress").peak_in_flight <= most


@pytest.mark.parametrize("number", [0, 1])
def test_a_bounded_queue_is_not_overflowed(number: int):
    """Behind the slots there are 8 to 32 places: at most half a per cent of the attempts are rejected."""
    ours = run(wide.draw("bounded queue", number), "progress")

    assert ours.rejections <= 0.005 * ours.attempts


@pytest.mark.slow
def test_many_workers_and_a_slow_exchange_cost_little():
    """16 workers and a call of 0.1 s to the controller: at most 4 % more than one worker beside it."""
    course = replace(wide.draw("64 slots", 1), jobs=1_000)

    setup = VirtualSetup(workers=16, lag_s=0.1)
    far = run_virtual(build_law("progress"), course.server(0), course.draw(0), setup=setup)

    assert far.makespan_s <= 1.04 * run(course, "progress").makespan_s
