"""Replay: a server fitted to what a run saw is about as fast as the real one, and says where it knows nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from evalpipe.control.build import build_law
from evalpipe.errors import ConfigError
from evalpipe.sim.batching import BatchingParams
from evalpipe.sim.course import Course
from evalpipe.sim.profiles import Profile, profile
from evalpipe.sim.replay import AMPLE, Seen, fit, replay
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualSetup


def recorded(server: Profile, law: str, *, jobs: int, start: float | None = None) -> Seen:
    """Run a law on a server and keep of it what a run keeps: tokens, times, and when each was sent."""
    course = Course("recorded", server, jobs)
    work = course.draw(0)
    run = run_virtual(build_law(law, start=start), course.server(0), work, setup=VirtualSetup())
    order = np.argsort(run.done_at - run.rtt_s)
    return Seen(
        prompt_tokens=np.array([work[job].prompt_tokens for job in run.job_id[order]]),
        output_tokens=np.array([work[job].output_tokens for job in run.job_id[order]]),
        sent_at=(run.done_at - run.rtt_s)[order],
        rtt_s=run.rtt_s[order],
        ttft_s=run.ttft_s[order],
        seconds=run.makespan_s,
        mean_in_flight=run.mean_in_flight,
    )


def params(server: Profile) -> BatchingParams:
    assert isinstance(server.server, BatchingParams)
    return server.server


def test_a_server_with_a_queue_is_found_again():
    """Of 24 slots, a step of 20 ms and 0.1 ms more a sequence: slots within 2, a full step within 10 %."""
    real = profile("vllm", slots=24, step_s=0.02, per_seq_s=1e-4)
    seen = recorded(real, "gradient", jobs=600)

    fitted = params(fit(seen))

    assert fitted.slots == pytest.approx(24, abs=2)
    assert fitted.step_s + 24 * fitted.per_seq_s == pytest.approx(0.02 + 24e-4, rel=0.1)


def test_another_law_on_the_fitted_server_takes_as_long_as_on_the_real_one():
    """Recorded under `gradient`; `aimd` from the fit within 10 % of what it really takes."""
    real = profile("vllm", slots=32)
    seen = recorded(real, "gradient", jobs=800)
    truth = recorded(real, "aimd", jobs=800)

    own, other = replay(seen, fit(seen), [(name, partial(build_law, name)) for name in ("gradient", "aimd")])

    assert own.seconds == pytest.approx(seen.seconds, rel=0.1)
    assert other.seconds == pytest.approx(truth.seconds, rel=0.1)
    assert (own.label, own.rejections, own.unfinished) == ("gradient", 0, 0)


def test_a_server_that_was_never_full_has_no_known_end():
    """Eight in flight on 64 slots: no queue, so no number of slots is made up."""
    seen = recorded(profile("vllm"), "fixed", jobs=200, start=8)

    assert params(fit(seen)).slots == AMPLE


def test_without_streams_the_fit_still_runs():
    """Only whole latencies: speed is right at what was in flight, slots are not known."""
    seen = recorded(profile("vllm"), "fixed", jobs=300, start=32)
    blind = replace(seen, ttft_s=np.full(len(seen.rtt_s), np.nan))

    fitted = fit(blind)
    (again,) = replay(blind, fitted, [("fixed 32", partial(build_law, "fixed", start=32))])

    assert params(fitted).slots == AMPLE
    assert again.seconds == pytest.approx(seen.seconds, rel=0.05)


def test_a_given_server_is_taken_as_it_is():
    """On the profile it was recorded on, the same law takes the same time; work follows the profile's own size."""
    server = profile("cliff", sigma=0.15)
    seen = recorded(server, "aimd", jobs=400)

    (again,) = replay(seen, server, [("aimd", partial(build_law, "aimd"))])

    assert again.seconds == pytest.approx(seen.seconds, rel=0.1)


def test_a_few_answers_are_no_fit():
    """Forty-nine answers: the message says what would do."""
    seen = recorded(profile("vllm"), "fixed", jobs=49, start=8)

    with pytest.raises(ConfigError, match="49 answers, 50 are the least; give one with --profile"):
        fit(seen)
