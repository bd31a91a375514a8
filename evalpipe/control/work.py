"""How long should this request take on an unloaded server? The work model, and the congestion gradient built on it.

Raw latency of language-model traffic is mostly answer length, so its minimum is the shortest answer and its median says
nothing about load. Here every latency is divided by the request's expected work first; the gradient is
baseline / recent of that ratio, unclamped and without tolerance (clamps belong to laws). It is measured and shown
whichever law steers.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from evalpipe.control.observation import Outcome, Sample

# Prior: one request costs as much as ten output tokens, a prompt token a hundredth of an output token. Orders of
# magnitude of vLLM step times (8 ms a step, 0.04 ms a prefill token); a few dozen samples outweigh it.
PRIOR = (10.0, 0.01, 1.0)
PRIOR_SAMPLES = 4.0
FORGET = 0.998  # a memory of about 500 samples
LEARN_BELOW = 1.5  # only samples near the baseline teach the shape: a queue must not become part of the work
BUCKETS, BUCKET_S = 10, 30.0  # ageing minima after LEDBAT (RFC 6817): the baseline forgets in five minutes
BLOCK = 8  # a baseline candidate is the median of so many samples: one short answer is not a baseline
RECENT = 32


@dataclass(slots=True)
class WorkState:
    """Everything the meter remembers, JSON-able. shape: weights of (1, prompt tokens, output tokens) in work units.

    sums: decayed weighted moments, upper triangle of x x^T by rows, then x*rtt. minima: (bucket number, seconds per
    unit of work), oldest first; buckets count observed time (elapsed_s), so that another host may go on with them.
    """

    shape: list[float] = field(default_factory=lambda: list(PRIOR))
    sums: list[float] = field(default_factory=lambda: [0.0] * 9)
    minima: list[list[float]] = field(default_factory=list)
    elapsed_s: float = 0.0


class WorkModel:
    """Expected work of (prompt tokens, output tokens), learned by ridge regression of latency on both.

    Unit: work is scaled so that over the traffic seen it averages what the prior says, about one output token each;
    so latency / work reads as seconds per output token and stays comparable while the shape is learned.
    """

    def __init__(self, state: WorkState) -> None:
        self.state = state

    def work(self, prompt_tokens: int, output_tokens: int) -> float:
        a, b, c = self.state.shape
        return max(a + b * prompt_tokens + c * output_tokens, 1e-9)

    def learn(self, sample: Sample) -> None:
        """Add one sample to the moments. Weight 1/(output+30)^2 keeps long answers from drowning short ones."""
        x = (1.0, float(sample.prompt_tokens), float(sample.output_tokens))
        weight = 1.0 / (sample.output_tokens + 30.0) ** 2
        terms = [x[i] * x[j] for i in range(3) for j in range(i, 3)] + [x[i] * sample.rtt_s for i in range(3)]
        self.state.sums = [FORGET * old + weight * term for old, term in zip(self.state.sums, terms, strict=True)]

    def refit(self) -> None:
        """Solve for the shape: ridge toward the prior, no negative weight, rescaled to the prior's mean work."""
        s11, s1p, s1o, spp, spo, soo, r1, rp, ro = self.state.sums
        prior_mean = PRIOR[0] * s11 + PRIOR[1] * s1p + PRIOR[2] * s1o
        if s11 <= 0.0 or r1 <= 0.0:
            return
        scale = r1 / prior_mean  # seconds per unit of prior work
        share = PRIOR_SAMPLES * (1.0 - FORGET)
        matrix = [[s11, s1p, s1o], [s1p, spp, spo], [s1o, spo, soo]]
        right = [r1, rp, ro]
        for i in range(3):
            ridge = share * matrix[i][i] + 1e-12
            matrix[i][i] += ridge
            right[i] += ridge * PRIOR[i] * scale
        shape = [max(weight, 0.0) for weight in _solve3(matrix, right)]
        mean = shape[0] * s11 + shape[1] * s1p + shape[2] * s1o
        if mean > 0.0:
            self.state.shape = [weight * prior_mean / mean for weight in shape]


class GradientMeter:
    """Measure baseline, recent and their ratio from successful samples. No clock: the caller says when."""

    def __init__(self, state: WorkState | None = None) -> None:
        self.state = state if state is not None else WorkState()
        self.model = WorkModel(self.state)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._block: list[float] = []
        self._now: float | None = None

    def observe(self, sample: Sample, *, now: float) -> float | None:
        """Take one sample in; return its latency per unit of work in seconds, None if it measures nothing."""
        self.state.elapsed_s += now - self._now if self._now is not None else 0.0
        self._now = now
        if sample.outcome is not Outcome.OK or sample.rtt_s <= 0.0:
            return None
        ratio = sample.rtt_s / self.model.work(sample.prompt_tokens, sample.output_tokens)
        baseline = self.baseline_s
        if baseline is None or ratio <= LEARN_BELOW * baseline:
            self.model.learn(sample)
        self._recent.append(ratio)
        self._block.append(ratio)
        if len(self._block) >= BLOCK:
            self._close_block()
        return ratio

    def _close_block(self) -> None:
        median, bucket = statistics.median(self._block), self.state.elapsed_s // BUCKET_S
        self._block.clear()
        minima = self.state.minima
        if minima and minima[-1][0] == bucket:
            minima[-1][1] = min(minima[-1][1], median)
        else:
            minima.append([bucket, median])
        self.state.minima = [entry for entry in minima if entry[0] > bucket - BUCKETS]
        self.model.refit()

    @property
    def baseline_s(self) -> float | None:
        """Unloaded latency per unit of work: the least block median of the last five minutes."""
        return min((value for _, value in self.state.minima), default=None)

    @property
    def recent_s(self) -> float | None:
        """Latency per unit of work now: the median of the last 32 samples."""
        return statistics.median(self._recent) if self._recent else None

    @property
    def gradient(self) -> float | None:
        """baseline / recent: 1 on an unloaded server, towards 0 as latency grows. None before the first block."""
        baseline, recent = self.baseline_s, self.recent_s
        return baseline / recent if baseline is not None and recent else None


def _solve3(m: list[list[float]], r: list[float]) -> list[float]:
    """Solve a 3x3 symmetric positive definite system by Gaussian elimination without pivoting (the ridge allows it)."""
    m, r = [row[:] for row in m], r[:]
    for i in range(3):
        for j in range(i + 1, 3):
            factor = m[j][i] / m[i][i]
            m[j] = [a - factor * b for a, b in zip(m[j], m[i], strict=True)]
            r[j] -= factor * r[i]
    x = [0.0, 0.0, 0.0]
    for i in (2, 1, 0):
        x[i] = (r[i] - sum(m[i][k] * x[k] for k in range(i + 1, 3))) / m[i][i]
    return x
