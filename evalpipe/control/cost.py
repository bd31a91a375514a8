"""What an exchange costs the controller: many workers must ask it less often, or it takes a whole core. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Ray's part included (benchmarks/controller.py, 2026-11, 2 cores: 0.49 ms, and up to 0.75 when others use them, too);
# until it was measured.
GUESS_S = 0.00055
SHARE = 0.2  # of a core, for all workers together
EVERY = 200  # exchanges: the clock of CPU time may be as coarse as 10 ms
LEAST_S, MOST_S = 0.0002, 0.003  # of a measurement: what else the process did is in it


@dataclass(slots=True)
class ExchangeCost:
    """seconds: CPU time of one exchange, smoothed."""

    seconds: float = GUESS_S
    _count: int = 0
    _since_s: float = 0.0

    def note(self, cpu_s: float) -> None:
        """Count an exchange. cpu_s: CPU time of this process so far."""
        if self._count == 0:
            self._since_s = cpu_s
        self._count += 1
        if self._count > EVERY:
            measured = min(max((cpu_s - self._since_s) / EVERY, LEAST_S), MOST_S)
            self.seconds += 0.5 * (measured - self.seconds)
            self._count, self._since_s = 1, cpu_s

    def interval_s(self, workers: int) -> float:
        """Return how long a worker must wait between two exchanges."""
        return workers * self.seconds / SHARE
