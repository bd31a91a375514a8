"""`progress`: growth by first tokens, cuts by what is stuck and by tokens that fail to come, states without a flow."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.control.build import build_law
from evalpipe.control.law import LimitChange
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample

TOKENS = 10  # a tick, of each stream


class Feed:
    """A law and the ticks it is shown. What is not said is as a server with room to spare has it."""

    def __init__(self, *, start: float = 40.0, min_limit: float = 1.0, mode: str = "cruise", **state) -> None:
        self.law = build_law("progress", start=start, min_limit=min_limit, max_limit=512)
        self.law.state.mode = mode
        self.law.state.has_streams = True
        for name, value in state.items():
            setattr(self.law.state, name, value)
        self.now = 0.0
        self.law.decide(now=0.0)

    @property
    def limit(self) -> float:
        return self.law.state.limit

    def tick(self, *, share: float = 1.0, begun: int = 3, late: int = 0, **seen) -> LimitChange | None:
        """One tick of a tenth of a second. share: of the tokens that the streams usually deliver."""
        in_flight = seen.setdefault("in_flight", math.floor(self.limit))
        streams = in_flight - seen.get("waiting", 0)
        first_tokens = (FirstTokens(8, begun, late, 0.05),) if begun else ()
        seen = {"output_tokens": round(TOKENS * streams * share), "first_tokens": first_tokens} | seen
        self.now += 0.1
        self.law.observe(Observation(**seen))
        return self.law.decide(now=self.now)

    def ticks(self, count: int, **seen) -> list[LimitChange]:
        return [change for _ in range(count) if (change := self.tick(**seen)) is not None]


def collapsed(feed: Feed) -> tuple[int, LimitChange]:
    """Let it run well for two seconds, then deliver a tenth; return how many were out, and the cut."""
    feed.ticks(20)
    out = math.floor(feed.limit)
    (cut,) = feed.ticks(2, in_flight=out, share=0.1)
    return out, cut


def drops(count: int, *, epoch: int = 0, in_flight: int = 40) -> tuple[Sample, ...]:
    return (Sample(Outcome.DROPPED, 0.1, kind="overloaded", epoch=epoch, in_flight_at_send=in_flight),) * count


def failures(count: int, kind: str) -> tuple[Sample, ...]:
    return (Sample(Outcome.IGNORED, 0.1, kind=kind),) * count


# --- growth ---


def test_startup_waits_for_the_first_tokens():
    """However long they take: what has not come back says nothing about room for more."""
    feed = Feed(start=16, mode="startup")

    assert feed.ticks(100, waiting=16, begun=0) == []


def test_startup_steps_up_when_they_are_back():
    """At most to twice the limit, then it waits again."""
    feed = Feed(start=16, mode="startup")
    feed.ticks(5, waiting=16, begun=0)

    change = feed.tick(waiting=0, begun=16)

    assert change.reason == "startup"
    assert 16 < change.new <= 32
    assert feed.ticks(20, waiting=4, begun=0) == []


def test_startup_waits_while_first_tokens_are_stuck_and_ends_where_they_stay_so():
    """A burst of prompts is over soon; after a second growth is slow, and nothing is cut before a queue stands."""
    feed = Feed(start=16, mode="startup")
    feed.ticks(4, waiting=2, overdue=1)

    changes = feed.ticks(5, waiting=2, overdue=1)
    before = feed.law.state.mode
    feed.ticks(3, waiting=2, overdue=1)

    assert (changes, before) == ([], "startup")
    assert (feed.law.state.mode, feed.law.state.epoch) == ("cruise", 0)


def test_nothing_grows_while_tokens_are_missing():
    """One tick of half the tokens is no collapse, but no time to try for more either."""
    feed = Feed()
    feed.ticks(20)

    assert feed.tick(share=0.5) is None
    assert feed.tick(share=1.5).reason == "grow"


def test_cuts_that_do_not_help_are_deeper_and_end():
    """Where half of the level brings no more tokens than all of it, the server is slower: no cut to the floor."""
    feed = Feed()
    feed.ticks(20)

    changes = feed.ticks(100, share=0.1, begun=1)

    cuts = [change.new / change.old for change in changes if change.reason == "collapse"]
    assert cuts == [pytest.approx(cut, abs=0.01) for cut in (0.92, 0.7, 0.7)]
    assert feed.limit >= 19


def test_cruise_grows_faster_the_longer_nothing_is_stuck():
    """The second three seconds bring more than the first, and no second more than a fifth."""
    feed, limits = Feed(), []
    for _ in range(7):
        feed.ticks(10)
        limits.append(feed.limit)

    first, second = limits[3] - limits[0], limits[6] - limits[3]
    assert 0 < first < second
    assert all(after <= 1.23 * before for before, after in itertools.pairwise(limits))


def test_a_limit_that_is_not_used_stays():
    """Neither growth nor decay while less than 90 % of it is in flight, nor at the end of a run that fades out."""
    feed = Feed()

    assert feed.ticks(100, in_flight=30) == []
    assert [change for left in range(30, 0, -1) for change in feed.ticks(2, in_flight=left, share=0.2)] == []


# --- the queue ---


def test_a_standing_queue_cuts_to_what_runs():
    """10 of 40 stuck for a second: 30 run, and the 0.8 that may be stuck at 40 come on top."""
    feed = Feed()

    (change,) = feed.ticks(11, waiting=10, overdue=10, begun=2, late=2)

    assert (change.reason, change.old, change.new) == ("queue", 40.0, pytest.approx(30.8))


def test_one_queue_is_one_cut():
    """Until no more are out than the cut allows, what is seen is the old limit's doing."""
    feed = Feed()
    feed.ticks(11, in_flight=40, waiting=10, overdue=10, begun=2, late=2)

    assert feed.ticks(50, in_flight=36, waiting=6, overdue=6, begun=2, late=2) == []
    assert feed.law.state.epoch == 1


def test_a_small_queue_cuts_enough_to_be_noticed():
    """3 of 40 stuck are not worth 8 %, but a cut that a neighbour does not see shares nothing."""
    (change,) = Feed().ticks(11, waiting=3, overdue=3, begun=2, late=2)

    assert change.new == pytest.approx(0.92 * 40)


def test_a_burst_that_empties_is_no_queue():
    """Prompts that arrive together are late together and gone a tick later."""
    feed = Feed(clean_s=0.0)

    for _ in range(20):
        feed.tick(waiting=10, overdue=10, begun=0)
        feed.tick(begun=10, late=10)

    assert feed.law.state.epoch == 0


def test_one_stuck_stream_of_a_sample_is_no_queue():
    """It stands for ten, but may be one that was preempted; two for a second are a queue of twenty."""
    unseen = {"unseen": 36, "begun": 1, "late": 1, "output_tokens": 40}

    assert Feed().ticks(20, waiting=1, overdue=1, **unseen) == []
    (change,) = Feed().ticks(11, waiting=2, overdue=2, **unseen)
    assert (change.reason, change.new) == ("queue", pytest.approx(20.8))


def test_a_queue_before_one_of_several_servers_is_not_cut():
    """While most first tokens are on time the others have room; once a stream stalls it is memory, and is cut."""
    feed = Feed()

    assert feed.ticks(40, waiting=10, overdue=10, begun=4, late=1) == []
    changes = feed.ticks(20, in_flight=40, waiting=10, overdue=10, stalled=1, begun=4, late=1)
    assert [change.reason for change in changes] == ["queue"]


def test_small_limits_want_a_short_queue():
    """At 4 one that waits now and then is none, one that does so for a second is a queue."""
    feed = Feed(start=4)

    for _ in range(10):
        assert feed.ticks(1, waiting=1, overdue=1, begun=1, late=1) == []
        assert feed.ticks(1, begun=1, late=1) == []
    (change,) = feed.ticks(10, waiting=1, overdue=1, begun=1, late=1)
    assert (change.reason, change.new) == ("queue", pytest.approx(3.6))


# --- the collapse ---


def test_tokens_that_fail_to_come_cut_without_any_queue():
    """At a tenth of the tokens, within two ticks, to what ran well before; and the level is remembered."""
    feed = Feed()

    out, cut = collapsed(feed)

    assert cut.reason == "collapse"
    assert cut.new <= 0.92 * cut.old
    assert feed.law.state.ceiling.level == out


def test_growth_stops_short_of_where_it_collapsed():
    """For the hold of the ceiling the limit stays at 92 % of it, and goes on after it."""
    feed = Feed()
    out, _ = collapsed(feed)

    feed.ticks(70)
    held = feed.limit
    feed.ticks(40)

    assert held == pytest.approx(0.92 * out, rel=0.02)
    assert feed.limit > held


def test_a_dip_is_forgiven():
    """The tokens came back while as many were out: growth goes on after two seconds, another dip is no collapse."""
    feed = Feed()
    out, _ = collapsed(feed)

    feed.ticks(4, in_flight=out, share=1.2)
    feed.ticks(40)

    assert feed.limit > 0.92 * out
    assert [change for change in feed.ticks(1, share=0.1) if change.reason == "collapse"] == []


# --- refusals ---


def test_a_burst_of_rejections_cuts_once():
    """All of one epoch are one episode; those sent after the cut are another."""
    feed = Feed()

    changes = [feed.tick(samples=drops(20, epoch=0)), feed.tick(samples=drops(5, epoch=0))]
    again = feed.tick(samples=drops(1, epoch=1, in_flight=32))

    assert (changes[0].reason, changes[0].new) == ("rejected", pytest.approx(20.0))
    assert changes[1] is None
    assert (again.reason, feed.law.state.epoch) == ("rejected", 2)


def test_a_rejection_cuts_to_what_ran_well():
    """Where 36 had run well, four fifths of the level that was rejected are enough of a cut."""
    change = Feed(good=36.0).tick(samples=drops(3, in_flight=40))

    assert change.new == pytest.approx(32.0)


def test_a_timeout_cuts_a_fifth():
    """Once an epoch too."""
    feed = Feed()

    changes = [feed.tick(samples=failures(3, "timeout")), feed.tick(samples=failures(3, "timeout"))]

    assert (changes[0].reason, changes[0].new, changes[1]) == ("timeout", pytest.approx(32.0), None)


def test_an_items_own_fault_moves_nothing():
    """A refused prompt or a lone reset is no overload."""
    feed = Feed(start=512)

    assert feed.ticks(20, samples=failures(1, "bad_request")) == []
    assert feed.ticks(1, samples=failures(1, "reset")) == []


# --- outage and stall ---


def test_an_outage_waits_at_the_floor_for_the_first_answer():
    """Everything fails and nothing flows: one at a time; the first answer brings half of the limit back, to ramp."""
    feed = Feed(min_limit=2)
    down = {"begun": 0, "output_tokens": 0, "samples": failures(5, "connect_failed")}

    changes = feed.ticks(60, in_flight=2, **down)
    up = feed.tick(in_flight=2, samples=(Sample(Outcome.OK, 1.0),))

    assert [(change.reason, change.new) for change in changes] == [("outage", 2.0)]
    assert (up.reason, up.new, feed.law.state.mode) == ("outage", 20.0, "startup")


def test_a_share_of_failures_is_no_outage():
    """While answers come, failures are the retries' business."""
    feed = Feed(start=512)

    assert feed.ticks(60, samples=(*failures(5, "server_error"), Sample(Outcome.OK, 1.0))) == []


def test_a_stall_keeps_the_limit_until_something_flows():
    """Nothing at all for ten seconds, and all still out: the cut of the first tick is taken back when it goes on."""
    feed = Feed()
    feed.ticks(20)
    before = math.floor(feed.limit)

    feed.ticks(100, in_flight=before, share=0.0, begun=0)
    assert feed.law.state.mode == "stall"
    feed.ticks(6, in_flight=before)

    assert feed.law.state.mode == "cruise"
    assert feed.limit == pytest.approx(0.96 * before, rel=0.02)


# --- what cannot be seen, and what is handed over ---


def test_without_streams_it_feels_its_way():
    """One request more for each round of answers; that all answers are waited for is no queue."""
    feed = Feed(has_streams=False)

    for _ in range(20):
        feed.tick(waiting=40, overdue=40, begun=0, samples=(Sample(Outcome.OK, 2.0),) * 2)

    assert feed.limit == pytest.approx(41.0, abs=0.05)
    assert feed.tick(begun=0, samples=drops(1)).reason == "rejected"


def test_a_restored_law_remembers():
    """Through JSON: the ceiling, the pace and the limit are the same."""
    feed = Feed()
    collapsed(feed)
    state = json.loads(json.dumps(asdict(feed.law.state)))

    twin = build_law("progress", max_limit=512, state=state)

    assert twin.state == feed.law.state
    assert twin.state.ceiling.level is not None


COUNTS = st.integers(0, 200)
SAMPLES = st.builds(
    Sample,
    outcome=st.sampled_from(Outcome),
    rtt_s=st.floats(0.0, 1e4),
    kind=st.sampled_from(["ok", "timeout", "reset", "bad_request"]),
    epoch=st.integers(0, 6),
    in_flight_at_send=COUNTS,
)
OBSERVATIONS = st.builds(
    Observation,
    in_flight=COUNTS,
    in_flight_peak=COUNTS,
    waiting=COUNTS,
    overdue=COUNTS,
    stalled=st.integers(0, 20),
    prefill_tokens=st.integers(0, 100_000),
    output_tokens=st.integers(0, 100_000),
    samples=st.lists(SAMPLES, max_size=5).map(tuple),
    first_tokens=st.lists(
        st.builds(FirstTokens, st.integers(0, 15), st.integers(1, 50), st.integers(0, 50), st.floats(0.0, 100.0)),
        max_size=2,
    ).map(tuple),
)
STEPS = st.lists(st.tuples(OBSERVATIONS, st.sampled_from([0.0, 0.1, 0.1, 0.1, 0.5, 60.0])), max_size=80)


@given(STEPS, st.sampled_from([(1, 1, 1), (1, 16, 512), (3, 7, 9), (2, 100, 1024)]))
@settings(max_examples=150, deadline=None)
def test_whatever_is_seen(steps, limits):
    """The limit stays in its bounds; unused it does not grow; each cut is an epoch, and one decision one cut."""
    low, start, high = limits
    law, now = build_law("progress", min_limit=low, start=start, max_limit=high), 0.0
    peak = 0
    for observation, gap_s in steps:
        old, epoch, now = law.state.limit, law.state.epoch, now + gap_s
        peak = max(peak, observation.in_flight, observation.in_flight_peak)
        law.observe(observation)
        change = law.decide(now=now)

        assert low <= law.state.limit <= high
        assert law.state.epoch - epoch <= 1
        if change is None:
            assert law.state.limit == old
            continue
        assert (change.old, change.new) == (old, law.state.limit)
        if change.new < old:
            assert law.state.epoch == epoch + 1
        elif change.reason != "outage":
            assert peak >= 0.9 * math.floor(old)


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_whatever_was_seen_can_be_handed_over(steps):
    """The state survives JSON without a NaN."""
    law, now = build_law("progress"), 0.0
    for observation, gap_s in steps:
        now += gap_s
        law.observe(observation)
        law.decide(now=now)

    state = json.loads(json.dumps(asdict(law.state), allow_nan=False))

    assert build_law("progress", state=state).state == law.state
