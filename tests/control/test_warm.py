"""Warm start: sooner at full speed where the old level still holds, and harmless where it does not."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from evalpipe.control.build import build_law
from evalpipe.control.law import Law, LimitChange
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.control.warm import ENOUGH, MEMORY, Settled, Settling, WarmStart
from evalpipe.sim.course import Course
from evalpipe.sim.profiles import profile
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

ALIVE = Observation(in_flight=16, in_flight_peak=16, output_tokens=10)
LEVEL = 200.0


def started(*, level: float = LEVEL, reason: str = "warm_start", law: str = "fixed", start: float = 16) -> WarmStart:
    """A law that starts at 16 and, being `fixed`, never moves by itself."""
    return WarmStart(build_law(law, start=start), Settled(level, reason))


def limits(law: WarmStart, observations: list[Observation], *, every_s: float = 0.5) -> list[float]:
    """The limit after each decision."""
    seen = []
    for number, observation in enumerate(observations):
        law.observe(observation)
        law.decide(now=number * every_s)
        seen.append(law.state.limit)
    return seen


def test_the_limit_is_led_to_six_tenths_in_three_seconds():
    """Six equal steps of half a second, then the law is alone."""
    law = started()

    assert limits(law, [ALIVE] * 8) == pytest.approx([33.33, 50.67, 68.0, 85.33, 102.67, 120.0, 120.0, 120.0], abs=0.01)


def test_a_short_way_takes_less():
    """Steps of at least eight requests: a law's own growth is not held up by smaller ones."""
    assert limits(started(level=60), [ALIVE] * 4) == [24.0, 32.0, 36.0, 36.0]


def test_a_step_is_told_with_its_reason():
    """A resumed run says so; the evidence says where it goes."""
    law = started(reason="resume")
    law.observe(ALIVE)

    change = law.decide(now=7.0)

    assert isinstance(change, LimitChange)
    assert (change.old, change.reason, change.evidence.state) == (16.0, "resume", "towards 120")
    assert change.new == pytest.approx(16 + 104 / 6)


@pytest.mark.parametrize(
    "sign",
    [
        Observation(output_tokens=1),
        Observation(first_tokens=(FirstTokens(6, 1, 0, 0.1),)),
        Observation(samples=(Sample(Outcome.OK, 0.4),)),
    ],
)
def test_nothing_grows_before_a_sign_of_life(sign: Observation):
    """Ten silent seconds leave the limit where it was, and the ramp begins when a token or an answer has come."""
    law = started()

    silent = limits(law, [Observation(in_flight=16, waiting=16)] * 20)
    law.observe(sign)
    law.decide(now=10.0)

    assert set(silent) == {16.0}
    assert law.state.limit == pytest.approx(16 + 104 / 6)


@pytest.mark.parametrize(
    "against",
    [
        Observation(in_flight=30, samples=(Sample(Outcome.DROPPED, 0.1, "rate_limited"),)),
        Observation(in_flight=30, samples=(Sample(Outcome.IGNORED, 60.0, "timeout"),)),
    ],
)
def test_the_ramp_ends_at_the_first_word_against_it(against: Observation):
    """A rejection or a timeout: the limit stays, for good; what follows from it is the law's to say."""
    law = started()

    seen = limits(law, [ALIVE, ALIVE, against, ALIVE, ALIVE])

    assert seen == pytest.approx([33.33, 50.67, 50.67, 50.67, 50.67], abs=0.01)


def test_what_is_stuck_is_taken_back():
    """More than a tenth makes no progress: the limit goes to what really runs, once, in a new epoch, and stays."""
    law = started()

    seen = limits(law, [ALIVE, ALIVE, Observation(in_flight=50, overdue=6, stalled=1), ALIVE, ALIVE])

    assert seen == pytest.approx([33.33, 50.67, 43.0, 43.0, 43.0], abs=0.01)
    assert law.state.epoch == 1


def test_a_few_that_are_late_do_not_matter():
    """Five overdue of fifty are no sign that the server is full."""
    law = started()

    assert limits(law, [ALIVE, Observation(in_flight=50, overdue=5)])[-1] == pytest.approx(50.67, abs=0.01)


def test_a_cut_of_the_law_stands():
    """What the law cuts is not lifted again by the ramp."""
    law = started(law="aimd")
    law.observe(ALIVE)
    law.decide(now=0.0)
    law.observe(Observation(in_flight=33, samples=(Sample(Outcome.DROPPED, 0.1, "overloaded", limit=33),)))

    cut = law.decide(now=0.5)
    law.observe(ALIVE)
    law.decide(now=1.0)

    assert cut is not None
    assert (cut.reason, law.state.limit) == ("rejected", cut.new)


@pytest.mark.parametrize("level", [0.0, 1.0, 26.0])
def test_a_level_below_the_start_changes_nothing(level: float):
    """Six tenths of 26 are below 16: the law begins as it would have begun cold."""
    assert set(limits(started(level=level), [ALIVE] * 8)) == {16.0}


def test_it_settles_where_most_ran():
    """The median of what really ran, over ticks in which the limit was in use; ten seconds of them at least."""
    settling = Settling()
    for _ in range(ENOUGH - 1):
        settling.add(limit=50.9, in_flight=40, stuck=4)
    settling.add(limit=50.9, in_flight=39, stuck=0)  # not in use
    early = settling.level
    settling.add(limit=50.9, in_flight=45, stuck=9)

    assert early is None
    assert settling.level == 36


def test_an_hour_ago_is_forgotten():
    """Only the last five minutes of ticks count."""
    settling = Settling()
    for in_flight in [200] * MEMORY + [20] * MEMORY:
        settling.add(limit=in_flight, in_flight=in_flight, stuck=0)

    assert settling.level == 20


# --- in virtual time ---

COURSES = {
    "64 slots": Course("64 slots", profile("vllm"), 1_000),
    "256 slots": Course("256 slots", profile("vllm", slots=256), 1_500),
    "8 slots": Course("8 slots", profile("vllm", slots=8), 200),
    "short queue": Course("short queue", profile("vllm", slots=48, max_queue=16), 800),
    "cliff": Course("cliff", profile("cliff", sigma=0.15), 1_500, prompt_median=50, prompt_sigma=0),
}
#: where a run of `gradient` or `progress` on them settles
SETTLED = {"64 slots": 66, "256 slots": 200, "8 slots": 9, "short queue": 50, "cliff": 48}


def heat(course: Course, law: Law) -> VirtualRun:
    return run_virtual(law, course.server(0), course.draw(0), setup=VirtualSetup())


@cache
def cold(name: str, law: str) -> VirtualRun:
    return heat(COURSES[name], build_law(law))


def warm(name: str, law: str, *, factor: float) -> VirtualRun:
    level = min(SETTLED[name] * factor, 512)
    return heat(COURSES[name], WarmStart(build_law(law), Settled(level)))


@pytest.mark.parametrize("law", ["gradient", "progress"])
def test_a_right_level_is_no_slower_anywhere_and_faster_on_a_large_server(law: str):
    """Over five servers at most 3 % slower than cold on any, and with 256 slots faster."""
    ratios = {name: warm(name, law, factor=1).makespan_s / cold(name, law).makespan_s for name in COURSES}

    assert max(ratios.values()) <= 1.03
    assert ratios["256 slots"] < 1.0


@pytest.mark.parametrize(("law", "factor"), list(product(["gradient", "progress"], [10.0, 0.1])))
def test_a_level_ten_times_wrong_is_harmless(law: str, factor: float):
    """Over five servers at most 6 % slower than cold, at most 5 rejections more, and no lasting queue.

    15 % for `gradient` on the cliff, which it climbs into and leaves by luck, however it begins; it needs answers to
    see a queue.
    """
    most = 3 if law == "gradient" else 2
    for name in COURSES:
        base, other = cold(name, law), warm(name, law, factor=factor)

        assert other.makespan_s <= (1.15 if (law, name) == ("gradient", "cliff") else 1.06) * base.makespan_s, name
        assert other.rejections <= base.rejections + 5, name
        assert float(np.median(other.ttft_s)) <= most * max(float(np.median(base.ttft_s)), 0.25), name


def test_a_smaller_server_than_before_is_not_flooded():
    """The level of a server of 256 slots, taken to one of 24: not slower than cold, and 154 are never out."""
    course = Course("24 slots", profile("vllm", slots=24), 400)

    before, after = heat(course, build_law("progress")), heat(course, WarmStart(build_law("progress"), Settled(256)))

    assert after.makespan_s <= 1.02 * before.makespan_s
    assert after.peak_in_flight < 100
