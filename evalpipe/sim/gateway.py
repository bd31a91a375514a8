"""What lies between a worker and a server: time on the way, and what becomes of a stream there. Plain data."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from evalpipe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Delay:
    """A request takes so many seconds longer from start_s until end_s."""

    seconds: float
    start_s: float = 0.0
    end_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Gateway:
    """delays: of every request, in seconds of the run. noise_s, noise_sigma: one more of each request, lognormal.

    is_buffering: a stream arrives in one piece with its last token. silent_s: nothing of an answer is seen for so long
    after its first token, as of a model that thinks.
    """

    delays: tuple[Delay, ...] = ()
    noise_s: float = 0.0
    noise_sigma: float = 0.0
    is_buffering: bool = False
    silent_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.noise_s, self.noise_sigma, self.silent_s) < 0:
            raise ConfigError(f"noise_s, noise_sigma and silent_s must be at least 0, got {self}")

    @property
    def hides_streams(self) -> bool:
        return self.is_buffering or self.silent_s > 0

    def delay_s(self, *, now: float, rng: random.Random) -> float:
        """Return the seconds that a request sent now is on its way."""
        fixed_s = sum(delay.seconds for delay in self.delays if delay.start_s <= now < delay.end_s)
        if not self.noise_s:
            return fixed_s
        return fixed_s + self.noise_s * math.exp(self.noise_sigma * rng.gauss(0, 1))
