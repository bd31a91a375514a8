"""The batching server against closed forms, and against the same scheduler written step by step and naively."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalpipe.errors import ConfigError
from evalpipe.sim.batching import Batching, BatchingParams
from evalpipe.sim.decode import BLOCK, Span, blocks_of
from evalpipe.sim.engine import Event, Job

PURE_DECODE = BatchingParams(slots=8, step_s=0.010, per_seq_s=0.001, per_prefill_token_s=0.0)


def drain(model: Batching) -> list[Event]:
    """Advance from event to event until nothing is due."""
    events: list[Event] = []
    while (at := model.next_event_at()) < math.inf:
        events += model.advance(at)
    return events


def test_rate_of_full_batch_is_slots_over_step_time():
    """Eight sequences that decode together make 8 tokens each step_s + 8 * per_seq_s."""
    model = Batching(PURE_DECODE)
    for i in range(8):
        model.submit(Job(i, 1, 1001), now=0.0)

    events = drain(model)

    prefill_s, decode_s = 0.010, 1000 * (0.010 + 8 * 0.001)
    assert events[-1].at == pytest.approx(prefill_s + decode_s)
    assert model.tokens_emitted == 8 * 1001


def test_rate_with_quadratic_term_and_growing_kv():
    """A lone sequence pays step + seq + seq^2 + kv for each token; its kv grows by one a step."""
    params = BatchingParams(step_s=0.01, per_seq_s=0.001, per_seq_squared_s=0.0001, per_kv_token_s=1e-6)
    model = Batching(params)
    model.submit(Job(0, 100, 51), now=0.0)

    events = drain(model)

    prefill_s = 0.01 + 100 * params.per_prefill_token_s
    kv_s = 1e-6 * sum(100 + i for i in range(50))
    assert [e.kind for e in events] == ["first_token", "done"]
    assert events[0].at == pytest.approx(prefill_s)
    assert events[1].at == pytest.approx(prefill_s + 50 * 0.0111 + kv_s)


def test_long_prompt_is_prefilled_in_chunks():
    """A prompt of 5,000 tokens takes three steps of at most 2,048 before its first token."""
    model = Batching(BatchingParams())
    model.submit(Job(0, 5000, 1), now=2.0)

    events = drain(model)

    assert [e.kind for e in events] == ["first_token", "done"]
    assert events[0].at == pytest.approx(2.0 + 3 * 0.008 + 5000 * 4e-5)


def test_request_beyond_slots_waits_for_a_free_one():
    """The ninth of eight slots starts only when the first has finished."""
    model = Batching(PURE_DECODE)
    for i in range(9):
        model.submit(Job(i, 1, 10 + i), now=0.0)
    model.advance(0.0)

    assert (model.running, model.waiting, model.in_flight) == (8, 1, 9)
    events = drain(model)
    first_done = next(e.at for e in events if e.kind == "done")
    start_of_last = next(e.at for e in events if e.job_id == 8)
    assert start_of_last > first_done


@pytest.mark.parametrize("status", [429, 503])
def test_full_queue_rejects(status: int):
    """With 8 slots and a queue of 2 the eleventh is refused, also when all come at one instant."""
    params = BatchingParams(slots=8, max_queue=2, reject_status=status, step_s=0.01)
    model = Batching(params)

    verdicts = [model.submit(Job(i, 1, 10), now=0.0) for i in range(11)]

    assert verdicts[:10] == [None] * 10
    assert verdicts[10] is not None
    assert (verdicts[10].status, model.in_flight) == (status, 10)


def test_request_larger_than_memory_is_refused_for_good():
    """What can never fit is a 400, not a wait for ever."""
    model = Batching(BatchingParams(kv_tokens=1600))

    rejection = model.submit(Job(0, 1500, 200), now=0.0)

    assert rejection is not None
    assert (rejection.status, rejection.code) == (400, "context_length_exceeded")


def test_preemption_loses_no_token():
    """Short memory preempts and recomputes; in the end each job has emitted exactly its tokens, and memory is empty."""
    model = Batching(BatchingParams(slots=16, kv_tokens=2048))
    for i in range(16):
        model.submit(Job(i, 64, 300), now=0.0)

    events = drain(model)

    assert model.preemptions > 0
    assert sum(e.kind == "preempted" for e in events) == model.preemptions
    assert sorted(e.job_id for e in events if e.kind == "first_token") == list(range(16))
    assert sorted(e.job_id for e in events if e.kind == "done") == list(range(16))
    assert model.tokens_emitted == 16 * 300
    assert model.prefill_done == 16 * 64
    assert model.kv_used == 0


def test_last_admitted_is_preempted_and_comes_back_first():
    """The victim is the newest running sequence; it goes to the head of the queue."""
    model = Batching(BatchingParams(slots=3, kv_tokens=160))
    for i in range(4):
        model.submit(Job(i, 32, 40), now=0.0)

    events = drain(model)

    assert next(e.job_id for e in events if e.kind == "preempted") == 2
    order = [e.job_id for e in events if e.kind == "done"]
    assert order.index(2) < order.index(3)


def test_cancel_frees_slot_and_memory():
    """A cancelled job emits nothing more and its slot goes to the next at the end of the step under way."""
    model = Batching(BatchingParams(slots=1))
    model.submit(Job(0, 100, 1000), now=0.0)
    model.submit(Job(1, 100, 5), now=0.0)
    model.advance(1.0)
    emitted = model.tokens_of(0)

    model.cancel(0, now=1.0)
    events = drain(model)

    assert emitted > 100
    assert {e.job_id for e in events} == {1}
    assert events[0].at < 1.1
    assert (model.in_flight, model.kv_used, model.tokens_of(0)) == (0, 0, 0)


def test_tokens_grow_while_nothing_happens():
    """Between two events the tokens of a stream follow the steps that are over."""
    model = Batching(PURE_DECODE)
    model.submit(Job(0, 1, 1000), now=0.0)
    model.advance(0.0)

    counts = []
    for now in (0.005, 0.0105, 0.0215, 0.1205):
        model.advance(now)
        counts.append(model.tokens_of(0))

    assert counts == [0, 1, 2, 11]
    assert model.tokens_emitted == 11


def test_impossible_settings_are_refused():
    """A batch must hold one token for each slot."""
    with pytest.raises(ConfigError, match="max_num_batched_tokens=32, slots=64"):
        BatchingParams(slots=64, max_num_batched_tokens=32)


@given(
    first_s=st.floats(0.001, 0.1),
    growth_s=st.floats(0, 0.001),
    count=st.integers(1, 5000),
    share=st.floats(0, 1),
)
def test_span_finds_the_step_of_an_instant(first_s: float, growth_s: float, count: int, share: float):
    """The number of completed steps is the last whose end is not after now."""
    span = Span(3.0, first_s, growth_s, count)
    now = 3.0 + share * (span.end - 3.0)

    steps = span.completed_by(now)

    assert span.end_of(steps) <= now or steps == 0
    assert steps == count or span.end_of(steps + 1) > now


@dataclass
class Plain:
    """A sequence of the naive scheduler."""

    job: Job
    computed: int = 0
    generated: int = 0
    planned: int = 0
    decodes: bool = False


def naive(params: BatchingParams, jobs: list[tuple[float, Job]]) -> list[Event]:
    """The scheduler of notes/loadtest.md 3.2, one step at a time, decoding first; memory counted from scratch."""
    arrivals, waiting, running, events, now = list(jobs), [], [], [], 0.0

    def free() -> int:
        return params.kv_tokens // BLOCK - sum(blocks_of(s.computed + s.planned) for s in running)

    def preempt() -> Plain:
        victim = running.pop()
        dropped.append(victim.computed)
        victim.computed, victim.planned, victim.decodes = 0, 0, False
        waiting.insert(0, victim)
        events.append(Event("preempted", victim.job.job_id, now))
        return victim

    while arrivals or waiting or running:
        if not waiting and not running:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            waiting.append(Plain(arrivals.pop(0)[1]))
        dropped: list[int] = []
        decoding = [s for s in running if s.decodes]
        for sequence in decoding:
            sequence.planned = 1
        while free() < 0:
            preempt()
        budget = params.max_num_batched_tokens - sum(s in running for s in decoding)
        for sequence in [s for s in running if s not in decoding]:
            target = sequence.job.prompt_tokens + sequence.generated
            tokens = min(target - sequence.computed, params.chunk, budget)
            while tokens and sequence in running:
                sequence.planned = tokens
                if free() >= 0:
                    budget -= tokens
                    break
                sequence.planned = 0
                preempt()
        while not dropped and waiting and budget > 0 and len(running) < params.slots:
            head = waiting[0]
            tokens = min(head.job.prompt_tokens + head.generated, params.chunk, budget)
            if blocks_of(tokens) > free():
                break
            head.planned = tokens
            budget -= tokens
            running.append(waiting.pop(0))
        decoders = [s for s in decoding if s in running]
        prefill = sum(s.planned for s in running if s not in decoders)
        now += params.step_s + params.per_prefill_token_s * prefill + params.per_seq_s * len(decoders)
        now += params.per_seq_squared_s * len(decoders) ** 2
        now += params.per_kv_token_s * sum(s.computed for s in running)
        now += params.swap_per_token_s * sum(dropped)
        for sequence in list(running):
            planned, sequence.planned = sequence.planned, 0
            sequence.computed += planned
            if planned and sequence.computed == sequence.job.prompt_tokens + sequence.generated:
                sequence.generated, sequence.decodes = sequence.generated + 1, True
                if sequence.generated == 1:
                    events.append(Event("first_token", sequence.job.job_id, now))
                if sequence.generated == sequence.job.output_tokens:
                    running.remove(sequence)
                    events.append(Event("done", sequence.job.job_id, now))
    return events


def by_job(events: list[Event]) -> list[tuple[int, str, float]]:
    return sorted((e.job_id, e.kind, e.at) for e in events)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 70)), min_size=1, max_size=12),
    gaps=st.lists(st.integers(0, 40), min_size=12, max_size=12),
    slots=st.integers(1, 6),
    chunk=st.sampled_from([7, 40, 200]),
    kv_tokens=st.sampled_from([160, 256, 400, 4000]),
    per_kv_token_s=st.sampled_from([0.0, 1.3e-6]),
)
def test_many_steps_at_once_equal_step_by_step(sizes, gaps, slots, chunk, kv_tokens, per_kv_token_s):
    """Closed form and counters give the events of the naive loop, preemptions included, to a microsecond."""
    params = BatchingParams(
        slots=slots,
        chunk=chunk,
        max_num_batched_tokens=max(chunk, slots),
        kv_tokens=kv_tokens,
        per_kv_token_s=per_kv_token_s,
        per_seq_squared_s=0.7e-5,
        swap_per_token_s=1.1e-5,
    )
    at, jobs = 0.0, []
    for i, ((prompt, output), gap) in enumerate(zip(sizes, gaps, strict=False)):
        at += gap * 0.00137031  # never on the end of a step
        jobs.append((at, Job(i, prompt, output)))
    model, events = Batching(params), []
    for at, group in itertools.groupby(jobs, key=lambda job: job[0]):
        events += model.advance(at)
        assert [model.submit(job, now=at) for _, job in group] == [None] * sum(j[0] == at for j in jobs)
    events += drain(model)

    expected = naive(params, jobs)

    assert [e[:2] for e in by_job(events)] == [e[:2] for e in by_job(expected)]
    assert [e[2] for e in by_job(events)] == pytest.approx([e[2] for e in by_job(expected)], abs=1e-6)
    assert model.tokens_emitted == sum(job.output_tokens for _, job in jobs)
    assert model.kv_used == 0
