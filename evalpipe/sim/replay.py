"""Another law on the work of a recorded run, in virtual time: the same prompts and answers, against a model server.

The server is given, or fitted from what the run saw. A fitted one is a sketch: how far it can be trusted is told by the
run's own law on it, beside what really happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalpipe.control.build import build_law
from evalpipe.control.law import Law
from evalpipe.errors import ConfigError
from evalpipe.sim.batching import BatchingParams
from evalpipe.sim.engine import Job
from evalpipe.sim.profiles import Lengths, Profile, Work
from evalpipe.sim.virtual import run_virtual
from evalpipe.sim.virtual_run import VirtualRun, VirtualSetup

Values = NDArray[np.float64]
Counts = NDArray[np.int64]

ENOUGH = 50  # answers that a fit needs
LEAST_STEP_S = 1e-4
LATE, LATE_S = 2.0, 0.25  # a first token that took twice as long as on an idle server, and so much longer, had waited
AMPLE = 4_096  # slots, where no queue was ever seen
AMPLE_KV = 1_000_000_000  # tokens: memory cannot be told from outside, so it never binds
CALIBRATE = 3  # runs at the recorded mean in flight, each of which corrects the speed
HORIZON_S = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run saw of its server. Arrays have one entry an answer, in the order of sending.

    sent_at: seconds, any origin. ttft_s: NaN where not streamed. seconds: the run took; mean_in_flight: over them.
    """

    prompt_tokens: Counts
    output_tokens: Counts
    sent_at: Values
    rtt_s: Values
    ttft_s: Values
    seconds: float
    mean_in_flight: float

    @property
    def is_streamed(self) -> bool:
        return bool(np.isfinite(self.ttft_s).sum() >= ENOUGH)

    def running(self) -> Values:
        """Return how many ran when each began: had a first token and were not done; were out, where none streamed."""
        begun = self.sent_at + np.where(np.isfinite(self.ttft_s), self.ttft_s, 0.0)
        done = np.sort(self.sent_at + self.rtt_s)
        count = np.searchsorted(np.sort(begun), begun, "right") - np.searchsorted(done, begun, "right")
        return count.astype(np.float64)

    def jobs(self, answers: Lengths | Work | None = None) -> list[Job]:
        """Return the work, in order. answers: of a profile whose jobs have a size beside their tokens."""
        per_work = answers.tokens_per_work if isinstance(answers, Work) else None
        pairs = zip(self.prompt_tokens.tolist(), self.output_tokens.tolist(), strict=True)
        return [
            Job(index, max(prompt, 1), max(output, 1), 1.0 if per_work is None else (prompt + output) / per_work)
            for index, (prompt, output) in enumerate(pairs)
        ]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A law on the recorded work. Times in seconds; unfinished: jobs left at the horizon."""

    label: str
    seconds: float
    rejections: int
    p50_s: float
    p99_s: float
    ttft_p50_s: float
    mean_in_flight: float
    unfinished: int = 0


def replay(seen: Seen, server: Profile, laws: Sequence[tuple[str, Callable[[], Law]]]) -> list[Replayed]:
    """Run each law, given with its label, on the work of the run. Takes about a second for 5,000 answers."""
    jobs = seen.jobs(server.answers)
    return [_summed(label, _run(build(), server, jobs)) for label, build in laws]


def fit(seen: Seen) -> Profile:
    """Return a batching server that is as fast as the one that was seen.

    step = step_s + per_seq_s * in flight, from the time per output token; per_prefill_token_s from the soonest first
    tokens; slots from how long first tokens were waited for; then all costs are scaled so that the recorded mean in
    flight takes as long as it took. Raises ConfigError for a run of fewer than 50 answers.
    """
    if len(seen.rtt_s) < ENOUGH:
        raise ConfigError(
            f"a server cannot be fitted to {len(seen.rtt_s)} answers, {ENOUGH} are the least; give one with --profile"
        )
    step_s, per_seq_s = _decoding(seen)
    slots = _slots(seen)
    server = BatchingParams(
        slots=slots,
        step_s=step_s,
        per_seq_s=per_seq_s,
        per_prefill_token_s=_prefill(seen),
        kv_tokens=AMPLE_KV,
        max_num_batched_tokens=max(2_048, slots),
    )
    return _calibrated(Profile("fitted", server), seen)


def _decoding(seen: Seen) -> tuple[float, float]:
    """Fit the seconds per output token as a line over the number that ran, neither part negative."""
    known = seen.output_tokens > 1
    if seen.is_streamed:
        known &= np.isfinite(seen.ttft_s)
        per_token = (seen.rtt_s - seen.ttft_s)[known] / (seen.output_tokens[known] - 1)
    else:
        per_token = seen.rtt_s[known] / seen.output_tokens[known]
    n, weights = seen.running()[known], seen.output_tokens[known].astype(np.float64)  # a long answer saw more steps
    mean_n, mean = float(np.average(n, weights=weights)), float(np.average(per_token, weights=weights))
    spread = float(np.average((n - mean_n) ** 2, weights=weights))
    slope = float(np.average((n - mean_n) * (per_token - mean), weights=weights)) / spread if spread > 0 else 0.0
    slope = min(max(slope, 0.0), mean / max(mean_n, 1.0))
    return max(mean - slope * mean_n, LEAST_STEP_S), slope


def _prefill(seen: Seen) -> float:
    """Return the seconds that a prompt token adds to the first token of an idle server.

    From the soonest first token to prompts of each size (powers of two): the median of the slopes up from the smallest
    ones, as those of a rare size may all have waited.
    """
    known = np.isfinite(seen.ttft_s)
    prompts, ttft_s = seen.prompt_tokens[known].astype(np.float64), seen.ttft_s[known]
    sizes = np.floor(np.log2(np.maximum(prompts, 1.0)))
    groups = [group for size in np.unique(sizes) if (group := sizes == size).sum() >= ENOUGH // 5]
    soonest = [(float(prompts[group].mean()), float(ttft_s[group].min())) for group in groups]
    if len(soonest) < 2:
        return BatchingParams().per_prefill_token_s
    few, soon = soonest[0]
    return max(float(np.median([(late - soon) / (many - few) for many, late in soonest[1:]])), 0.0)


def _slots(seen: Seen) -> int:
    """Return how many ran when one that had waited began: it got a slot that had just become free."""
    if not seen.is_streamed:
        return AMPLE
    idle_s = float(np.nanquantile(seen.ttft_s, 0.05))
    late = np.isfinite(seen.ttft_s) & (seen.ttft_s > max(LATE * idle_s, idle_s + LATE_S))
    return max(round(float(np.median(seen.running()[late]))), 1) if late.sum() >= ENOUGH else AMPLE


def _calibrated(server: Profile, seen: Seen) -> Profile:
    """Scale the costs, at the fixed limit that keeps as many in flight as the run had."""
    limit, jobs = seen.mean_in_flight, seen.jobs()
    for _ in range(CALIBRATE):
        run = _run(build_law("fixed", start=max(round(limit), 1)), server, jobs)
        server = _slowed(server, seen.seconds / run.makespan_s)
        limit *= seen.mean_in_flight / run.mean_in_flight
    return server


def _slowed(profile: Profile, factor: float) -> Profile:
    server = profile.server
    assert isinstance(server, BatchingParams), "a fitted server is a batching one"
    costs = (server.step_s * factor, server.per_seq_s * factor, server.per_prefill_token_s * factor)
    step_s, per_seq_s, per_prefill_token_s = costs
    changed = replace(server, step_s=step_s, per_seq_s=per_seq_s, per_prefill_token_s=per_prefill_token_s)
    return replace(profile, server=changed)


def _run(law: Law, server: Profile, jobs: Sequence[Job]) -> VirtualRun:
    setup = VirtualSetup(overhead_s=server.overhead_s, horizon_s=HORIZON_S)
    return run_virtual(law, server.build(0), jobs, setup=setup)


def _summed(label: str, run: VirtualRun) -> Replayed:
    p50_s, p99_s = np.quantile(run.rtt_s, (0.5, 0.99)).tolist() if len(run.rtt_s) else (math.nan, math.nan)
    ttft_s = float(np.median(run.ttft_s)) if len(run.ttft_s) else math.nan
    return Replayed(label, run.makespan_s, run.rejections, p50_s, p99_s, ttft_s, run.mean_in_flight, run.unfinished)
