"""Many decode steps at once: the sequences that emit one token a step, and the time such steps take.

While a batch does not change, step i costs first_s + i * growth_s, so k steps are an arithmetic series; and each
sequence needs a new KV block each BLOCK steps, so the need of k steps follows from BLOCK counters. Both cost the same
for 1 step and for 1,000, and for 1 sequence and for 1,000.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from evalpipe.sim.engine import Job

BLOCK = 16  # tokens a KV block, vLLM's default


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK)


@dataclass(slots=True, eq=False)
class Sequence:
    """A job inside the batch. computed: tokens in KV; generated: output tokens.

    While it decodes, both are as of step `since` and grow by one a step; `blocks` is exact only while it prefills.
    """

    job: Job
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    since: int | None = None  # None: not decoding

    @property
    def target(self) -> int:
        """Tokens that must be in KV before the next output token."""
        return self.job.prompt_tokens + self.generated


class DecodeSet:
    """The decoding sequences and the number of steps done so far."""

    def __init__(self) -> None:
        self.step = 0
        self.kv_tokens = 0  # of all members, now
        self._count = 0
        # Members by (computed - step) mod BLOCK, which decoding leaves as it is; a member needs a block in the step
        # that begins with computed = 0 mod BLOCK.
        self._phases = [0] * BLOCK
        self._finishes: list[tuple[int, int, Sequence]] = []  # (step, order of joining, sequence); stale ones stay
        self._joined = 0

    def __len__(self) -> int:
        return self._count

    def add(self, sequence: Sequence) -> None:
        sequence.since = self.step
        self._count += 1
        self.kv_tokens += sequence.computed
        self._phases[(sequence.computed - self.step) % BLOCK] += 1
        self._joined += 1
        heapq.heappush(self._finishes, (self._last_step(sequence), self._joined, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take the sequence out, its counters brought up to date."""
        assert sequence.since is not None
        steps = self.step - sequence.since
        sequence.computed += steps
        sequence.generated += steps
        sequence.since = None
        self._count -= 1
        self.kv_tokens -= sequence.computed
        self._phases[(sequence.computed - self.step) % BLOCK] -= 1

    def blocks_needed(self, steps: int) -> int:
        """Return the KV blocks that the next `steps` steps take."""
        whole, rest = divmod(steps, BLOCK)
        return whole * self._count + sum(self._phases[(-self.step - i) % BLOCK] for i in range(rest))

    def steps_possible(self, free_blocks: int) -> int:
        """Return how many steps go by before a member finishes or the free blocks are short; 0 without members."""
        if not self._count:
            return 0
        self._drop_stale()
        limit = self._finishes[0][0] - self.step
        rounds = min(limit // BLOCK, free_blocks // self._count)
        steps, left = rounds * BLOCK, free_blocks - rounds * self._count
        while steps < limit and (need := self._phases[(-self.step - steps) % BLOCK]) <= left:
            steps, left = steps + 1, left - need
        return steps

    def advance(self, steps: int) -> list[Sequence]:
        """Do so many steps (at most until the next finish) and take out who finished, in order of joining."""
        self.step += steps
        self.kv_tokens += steps * self._count
        finished = []
        while self._finishes:
            self._drop_stale()
            if not self._finishes or self._finishes[0][0] > self.step:
                break
            sequence = heapq.heappop(self._finishes)[2]
            self.remove(sequence)
            finished.append(sequence)
        return finished

    def _last_step(self, sequence: Sequence) -> int:
        assert sequence.since is not None
        return sequence.since + sequence.job.output_tokens - sequence.generated

    def _drop_stale(self) -> None:
        heap = self._finishes
        while heap and (heap[0][2].since is None or self._last_step(heap[0][2]) != heap[0][0]):
            heapq.heappop(heap)


@dataclass(slots=True)
class Span:
    """`count` equal batches in a row from `start`; step i (from 0) takes first_s + i * growth_s seconds."""

    start: float
    first_s: float
    growth_s: float
    count: int
    done: int = 0  # steps known to be over

    @property
    def end(self) -> float:
        return self.end_of(self.count)

    def end_of(self, steps: int) -> float:
        return self.start + self.first_s * steps + self.growth_s * (steps * (steps - 1) / 2)

    def completed_by(self, now: float) -> int:
        """Return how many steps are over at `now`: the root of the series, then corrected for rounding."""
        elapsed = max(now - self.start, 0.0)
        slope = self.first_s - self.growth_s / 2
        steps = int(2 * elapsed / (slope + math.sqrt(slope * slope + 2 * self.growth_s * elapsed)))
        while steps < self.count and self.end_of(steps + 1) <= now:
            steps += 1
        while steps > 0 and self.end_of(steps) > now:
            steps -= 1
        return min(steps, self.count)

    def rebase(self) -> None:
        """Forget the steps that are over; the rest keeps its times."""
        self.start, self.first_s = self.end_of(self.done), self.first_s + self.growth_s * self.done
        self.count, self.done = self.count - self.done, 0
