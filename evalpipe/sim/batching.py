"""A server with step-level continuous batching: prefill chunks, KV blocks, a waiting queue, preemption.

The scheduler of vLLM V1 in outline (notes/loadtest.md 3.2). Each step: running sequences first, and when the KV memory
is short the last admitted one is preempted (its KV dropped, its tokens kept, back to the head of the queue); then, if
nothing was preempted, admission first come first served. Differs from vLLM: decoding sequences get their token before
any prefill gets the rest of the budget, whatever the order of admission.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from evalpipe.errors import ConfigError
from evalpipe.sim.decode import BLOCK, DecodeSet, Sequence, Span, blocks_of
from evalpipe.sim.engine import Event, Job, Rejection


@dataclass(frozen=True, slots=True)
class BatchingParams:
    """Costs of one step in seconds, and sizes in sequences and tokens. The defaults are the `vllm` profile.

    step = step_s + per_prefill_token_s * prefill + per_seq_s * n + per_seq_squared_s * n^2 + per_kv_token_s * kv
           + swap_per_token_s * dropped, n decoding sequences with kv tokens in memory.
    watermark: share of the KV blocks kept free at admission. max_queue: None is unbounded.
    """

    slots: int = 64
    step_s: float = 0.008
    per_seq_s: float = 2e-5
    per_prefill_token_s: float = 4e-5
    per_kv_token_s: float = 0.0
    per_seq_squared_s: float = 0.0
    chunk: int = 2048  # most prefill tokens of one sequence in a step
    max_num_batched_tokens: int = 2048  # most tokens of all sequences in a step
    kv_tokens: int = 400_000
    watermark: float = 0.0
    max_queue: int | None = None
    reject_status: int = 429
    swap_per_token_s: float = 0.0

    def __post_init__(self) -> None:
        if self.step_s <= 0:
            raise ConfigError(f"step_s must be above 0, got {self.step_s:g}")
        if min(self.slots, self.chunk) < 1 or self.kv_tokens < BLOCK:
            raise ConfigError(f"slots and chunk must be at least 1 and kv_tokens at least {BLOCK}, got {self}")
        if self.max_num_batched_tokens < self.slots:
            raise ConfigError(
                "max_num_batched_tokens must hold one token a slot,"
                f" got max_num_batched_tokens={self.max_num_batched_tokens}, slots={self.slots}"
            )
        if self.max_queue is not None and self.max_queue < 0:
            raise ConfigError(f"max_queue must be at least 0, or null for no bound, got {self.max_queue}")


class Batching:
    """See ServerModel. Costs some 20 microseconds an event, whatever the number of slots and of steps between."""

    def __init__(self, params: BatchingParams) -> None:
        self._params = params
        self._slots = params.slots
        self._blocks = params.kv_tokens // BLOCK
        self._free = self._blocks
        self._jobs: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}  # in order of admission
        self._prefilling: dict[int, Sequence] = {}  # those of running that do not decode, same order
        self._waiting: deque[Sequence] = deque()
        self._decoding = DecodeSet()
        self._chunks: list[tuple[Sequence, int]] = []  # prefill of the step under way
        self._span: Span | None = None  # None: idle
        self._wake_at: float | None = None  # an idle server begins its step at the next advance: a burst is one batch
        self._is_full = False  # the last step found no KV memory for the head of the queue
        self._emitted = 0
        self.preemptions = 0
        self.prefill_done = 0

    @property
    def in_flight(self) -> int:
        return len(self._jobs)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def tokens_emitted(self) -> int:
        return self._emitted + self._steps_over() * len(self._decoding)

    @property
    def kv_used(self) -> float:
        return 1 - (self._free - self._decoding.blocks_needed(self._steps_over())) / self._blocks

    def tokens_of(self, job_id: int) -> int:
        sequence = self._jobs.get(job_id)
        if sequence is None:
            return 0
        if sequence.since is None:
            return sequence.generated
        return sequence.generated + self._decoding.step - sequence.since + self._steps_over()

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        if blocks_of(job.prompt_tokens + job.output_tokens) > self._blocks:
            return Rejection(400, None, "context_length_exceeded")
        if self._is_queue_full():
            return Rejection(self._params.reject_status, None, "queue_full")
        sequence = self._jobs[job.job_id] = Sequence(job, computed=min(job.cached_tokens, job.prompt_tokens - 1))
        self._waiting.append(sequence)
        if self._span is None:
            self._wake_at = now if self._wake_at is None else self._wake_at
        elif len(self._waiting) == 1 and len(self._running) < self._slots:
            self._replan_soon()
        return None

    def resize(self, share: float) -> None:
        """Go on with so large a share of the slots it was built with; what runs in the others still finishes."""
        self._slots = max(round(share * self._params.slots), 1)
        self._replan_soon()

    def cancel(self, job_id: int, *, now: float) -> None:
        sequence = self._jobs.pop(job_id, None)
        if sequence is None:
            return
        self._settle()
        if job_id in self._running:
            self._release(sequence)
        else:
            self._waiting.remove(sequence)
        self._replan_soon()

    def next_event_at(self) -> float:
        if self._wake_at is not None:
            return self._wake_at
        return math.inf if self._span is None else self._span.end

    def advance(self, now: float) -> list[Event]:
        events: list[Event] = []
        if self._wake_at is not None:
            at, self._wake_at = self._wake_at, None
            self._plan(at, events)
        while self._span is not None and self._span.end <= now:
            self._complete(self._span, events)
        if self._span is not None:
            self._span.done = self._span.completed_by(now)
        return events

    def _is_queue_full(self) -> bool:
        """Judge the queue beyond what the next step can admit: a burst on an idle server is not a queue."""
        if self._params.max_queue is None:
            return False
        room = 0 if self._is_full else max(self._slots - len(self._running), 0)
        return len(self._waiting) >= self._params.max_queue + room

    def _steps_over(self) -> int:
        return 0 if self._span is None else self._span.done

    def _replan_soon(self) -> None:
        """Let the span end with the step under way, so that the next one sees what changed."""
        if self._span is not None:
            self._span.count = min(self._span.count, self._span.done + 1)

    def _settle(self) -> None:
        """Book the steps of the span that are over."""
        if self._span is not None and self._span.done:
            self._decode(self._span.done)
            self._span.rebase()

    def _decode(self, steps: int) -> list[Sequence]:
        self._free -= self._decoding.blocks_needed(steps)
        self._emitted += steps * len(self._decoding)
        return self._decoding.advance(steps)

    def _complete(self, span: Span, events: list[Event]) -> None:
        at = span.end
        for sequence in self._decode(span.count):
            self._finish(sequence, at, events)
        for sequence, tokens in self._chunks:
            if sequence.job.job_id in self._prefilling:  # else cancelled during the step
                sequence.computed += tokens
                if sequence.computed == sequence.target:
                    self._start_decoding(sequence, at, events)
        self._plan(at, events)

    def _start_decoding(self, sequence: Sequence, at: float, events: list[Event]) -> None:
        """The step that completes a prefill emits a token too."""
        job = sequence.job
        if sequence.generated == 0:
            self.prefill_done += job.prompt_tokens
            events.append(Event("first_token", job.job_id, at))
        sequence.generated += 1
        self._emitted += 1
        del self._prefilling[job.job_id]
        if sequence.generated == job.output_tokens:
            self._finish(sequence, at, events)
        else:
            self._decoding.add(sequence)

    def _finish(self, sequence: Sequence, at: float, events: list[Event]) -> None:
        del self._running[sequence.job.job_id], self._jobs[sequence.job.job_id]
        self._free += blocks_of(sequence.computed)
        events.append(Event("done", sequence.job.job_id, at))

    def _release(self, sequence: Sequence) -> None:
        """Take a running sequence out of the batch and free its memory."""
        del self._running[sequence.job.job_id]
        if sequence.since is None:
            del self._prefilling[sequence.job.job_id]
            self._free += sequence.blocks
        else:
            self._decoding.remove(sequence)
            self._free += blocks_of(sequence.computed)

    def _plan(self, at: float, events: list[Event]) -> None:
        """Compose the next batch and how long it lasts unchanged."""
        params, dropped_before = self._params, self.preemptions
        dropped_tokens = 0
        while self._decoding.blocks_needed(1) > self._free:
            dropped_tokens += self._preempt(at, events)
        budget = params.max_num_batched_tokens - len(self._decoding)
        self._chunks = []
        for sequence in list(self._prefilling.values()):
            tokens = min(sequence.target - sequence.computed, params.chunk, budget)
            while tokens and sequence.job.job_id in self._running and not self._allocate(sequence, tokens):
                dropped_tokens += self._preempt(at, events)
            if tokens and sequence.job.job_id in self._running:
                self._chunks.append((sequence, tokens))
                budget -= tokens
        if self.preemptions == dropped_before:
            self._admit(budget)
        self._span = self._next_span(at, dropped_tokens) if self._running else None

    def _allocate(self, sequence: Sequence, tokens: int) -> bool:
        """Give the sequence memory for so many more tokens, unless that is short after what decoding needs."""
        need = blocks_of(sequence.computed + tokens) - sequence.blocks
        if need > self._free - self._decoding.blocks_needed(1):
            return False
        self._free -= need
        sequence.blocks += need
        return True

    def _preempt(self, at: float, events: list[Event]) -> int:
        """Drop the last admitted sequence, to be recomputed; return how many tokens of KV went with it."""
        victim = self._running[next(reversed(self._running))]
        self._release(victim)
        self._chunks = [chunk for chunk in self._chunks if chunk[0] is not victim]
        dropped = victim.computed
        victim.computed = victim.blocks = 0
        self._waiting.appendleft(victim)
        self.preemptions += 1
        self._is_full = True
        events.append(Event("preempted", victim.job.job_id, at))
        return dropped

    def _admit(self, budget: int) -> None:
        params = self._params
        self._is_full = False
        while self._waiting and budget > 0 and len(self._running) < self._slots:
            head = self._waiting[0]
            tokens = min(head.target, params.chunk, budget)
            kept = math.ceil(params.watermark * self._blocks) if self._running else 0
            if blocks_of(tokens) > self._free - self._decoding.blocks_needed(1) - kept:
                self._is_full = True
                return
            self._allocate(head, tokens)
            self._running[head.job.job_id] = self._prefilling[head.job.job_id] = self._waiting.popleft()
            self._chunks.append((head, tokens))
            budget -= tokens

    def _next_span(self, at: float, dropped_tokens: int) -> Span:
        params, sequences = self._params, len(self._decoding)
        kv_tokens = self._decoding.kv_tokens + sum(s.computed for s in self._prefilling.values())
        first_s = (
            params.step_s
            + params.per_prefill_token_s * sum(tokens for _, tokens in self._chunks)
            + params.per_seq_s * sequences
            + params.per_seq_squared_s * sequences**2
            + params.per_kv_token_s * kv_tokens
            + params.swap_per_token_s * dropped_tokens
        )
        if self._prefilling or dropped_tokens:
            return Span(at, first_s, 0.0, 1)
        return Span(at, first_s, params.per_kv_token_s * sequences, max(self._decoding.steps_possible(self._free), 1))
