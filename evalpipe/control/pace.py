"""How long should the work that was delivered have taken? The pace of the server, learned tick by tick.

A server that batches takes, for the work of a tick, about

    seconds = a * steps + b * tokens + c * tokens * streams + d * prompt_tokens          steps = tokens / streams

whatever the level in flight: a is a step's own time, b what each sequence adds to it, c what crowding adds, d prefill.
A server that shares one processor fits as well (b alone), and so does one that delivers in proportion to what is in
flight (a alone), and several replicas. So the share of a tick that its work explains tells whether tokens come as fast
as they should at this level, and neither prompts nor growth are mistaken for trouble. Tokens/s alone cannot tell: a
burst of prompts takes them down to a third on a healthy server (measured, benchmark `race --suite servers`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from evalpipe.control.window import Beat

TERMS = 4
PAIRS = [(i, j) for i in range(TERMS) for j in range(i, TERMS)]
MEMORY_S = 40.0  # a change of traffic or of the server is learned within about this
KNOWN_S = 0.5  # of ticks before the model may be asked: five of them tell the order of magnitude
# Where two terms cannot be told apart, because few levels were seen, the one that promises more of growth takes it all:
# b and c are made dearer by these shares of their moments.
RIDGE = (0.0, 0.002, 0.004, 0.0)
SWEEPS = 4  # of coordinate descent a tick; it goes on where the last tick ended


@dataclass(slots=True)
class PaceState:
    """Everything the model remembers, JSON-able. weights: a, b, c, d, in seconds, none below 0.

    moments: decayed sums of x x^T (upper triangle by rows), then of x * seconds. learned_s: seconds of ticks seen.
    """

    weights: list[float] = field(default_factory=lambda: [0.0] * TERMS)
    moments: list[float] = field(default_factory=lambda: [0.0] * (len(PAIRS) + TERMS))
    learned_s: float = 0.0


class Pace:
    """Least squares of time on work with forgetting, all weights at least 0. Owns its state."""

    def __init__(self, state: PaceState) -> None:
        self.state = state

    @property
    def is_known(self) -> bool:
        return self.state.learned_s >= KNOWN_S * 0.999

    @property
    def prompt_token_s(self) -> float:
        """Seconds of the server's time a prompt token."""
        return self.state.weights[3]

    def explained_s(self, beats: Iterable[Beat]) -> float:
        """Return how long the work of these ticks should have taken."""
        return sum(weight * x for beat in beats for weight, x in zip(self.state.weights, _work(beat), strict=True))

    def elasticity(self, streams: float) -> float:
        """By how much tokens/s grow with streams: 1 in proportion, 0 not at all, below 0 they fall."""
        own, sequence, crowding, _ = self.state.weights
        step_s = own + sequence * streams + crowding * streams * streams
        return (own - crowding * streams * streams) / step_s if step_s > 0 else 1.0

    def learn(self, beats: Iterable[Beat]) -> None:
        """Take in a few ticks in a row as one row: the work and the time of a single tick are not quite aligned."""
        rows = list(beats)
        seconds = sum(beat.flow_s for beat in rows)
        x = [sum(column) for column in zip(*map(_work, rows), strict=True)]
        if seconds <= 0 or x[1] <= 0:
            return
        keep = max(1.0 - rows[-1].seconds / MEMORY_S, 0.0)
        terms = [x[i] * x[j] for i, j in PAIRS] + [value * seconds for value in x]
        self.state.moments = [keep * old + term / seconds for old, term in zip(self.state.moments, terms, strict=True)]
        self.state.learned_s += rows[-1].seconds
        self._refit()

    def slow_down(self, factor: float) -> None:
        """The server takes so many times longer for everything than it did."""
        self.state.weights = [weight * factor for weight in self.state.weights]
        products = len(PAIRS)
        self.state.moments = [m if i < products else m * factor for i, m in enumerate(self.state.moments)]

    def _refit(self) -> None:
        moments, weights = self.state.moments, self.state.weights
        matrix = [[0.0] * TERMS for _ in range(TERMS)]
        for (i, j), moment in zip(PAIRS, moments, strict=False):
            matrix[i][j] = matrix[j][i] = moment
        for _ in range(SWEEPS):
            for i, row in enumerate(matrix):
                if row[i] > 0:
                    others = sum(row[j] * weights[j] for j in range(TERMS) if j != i)
                    weights[i] = max((moments[len(PAIRS) + i] - others) / (row[i] * (1.0 + RIDGE[i])), 0.0)


def _work(beat: Beat) -> tuple[float, float, float, float]:
    return beat.tokens / beat.streams, float(beat.tokens), beat.tokens * beat.streams, float(beat.prefill)
