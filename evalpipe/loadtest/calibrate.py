"""Costs of a simulated server read off a real one: a closed-loop ladder and two lengths of prompt, by least squares.

With n sequences that decode (by Little's law X times the time between first and last token), a step takes

    TPOT = step_s + per_prefill_token_s * X * P * TPOT + per_seq_s * n + per_seq_squared_s * n^2

for X requests/s of P prompt tokens. The second term grows with n as the third does, so it is found apart, from the
first token of a lone user: TTFT = overhead_s + step_s + per_prefill_token_s * P at two P. That holds while a prompt
fits into one step; with a server that cuts prompts smaller, the steps between are counted as cost of prompt tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evalpipe.errors import ConfigError
from evalpipe.loadtest.ladder import climb
from evalpipe.loadtest.measures import Measures
from evalpipe.loadtest.probe import Point, Probe

SHORT = 0.25  # of the test's prompts
LONE_S, LONE_WARMUP_S = 30.0, 5.0
WAITING_SHARE = 0.1  # of the requests at the server: its slots are full, and more users make no longer steps
MANY = 1024  # slots of a server whose limit was not met


@dataclass(frozen=True, slots=True)
class Twin:
    """Costs in seconds, fields as BatchingParams and Profile name them. slots: None where the ladder met no limit.

    error: of TPOT over the rungs that were fitted, root mean square, relative.
    """

    step_s: float
    per_prefill_token_s: float
    per_seq_s: float
    per_seq_squared_s: float
    overhead_s: float
    slots: int | None
    output_tokens: float
    error: float

    def options(self) -> dict[str, float | int]:
        """Return what `evalpipe sim serve vllm --set NAME=VALUE` takes for this server."""
        costs = {name: value for name, value in asdict(self).items() if name.endswith("_s")}
        return {**costs, "slots": self.slots or MANY, "median": self.output_tokens, "sigma": 0.0}

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "options": self.options()}


def calibrate(*, prompt_tokens: int, seed: int, most_users: int = 256) -> Generator[Probe, Point, Twin]:
    """Ask for a lone user with short and with long prompts, then for the ladder. prompt_tokens: of the test.

    Raises ConfigError when the client was late in too many rows for a fit: those are not used.
    """
    short = max(round(SHORT * prompt_tokens), 8)
    lone = []
    for tokens in (short, prompt_tokens):
        lone.append((yield Probe("closed", 1, LONE_WARMUP_S, LONE_S, seed=seed, prompt_tokens=tokens)))
    rungs = yield from climb(seed=seed, most_users=most_users)
    late = [point for point in [*lone, *rungs] if not point.is_usable]
    try:
        return fit(*([p.measures for p in points if p.is_usable] for points in (lone, rungs)))
    except ConfigError as error:
        raise ConfigError(
            f"{error}; rows not used, for {late[0].notes[0]}: {len(late)}" if late else str(error)
        ) from None


def fit(lone: Sequence[Measures], rungs: Sequence[Measures]) -> Twin:
    """Return the costs. lone: of one user at two lengths of prompt. Raises ConfigError when there is too little."""
    if len(rungs) < 3 or len(lone) != 2 or not all(row.completed for row in [*lone, *rungs]):
        raise ConfigError("a fit needs answers at two lengths of prompt and at three numbers of users or more")
    short, long = lone
    lengths = [row.prompt_tokens_per_s / row.requests_per_s for row in lone]
    per_prefill_s = max((long.ttft_sent.mean_s - short.ttft_sent.mean_s) / (lengths[1] - lengths[0]), 0.0)
    free = [row for row in rungs if not _is_full(row)] or list(rungs)
    step_s, per_seq_s, squared_s = _solve(free, per_prefill_s)
    rows = [(row, step_s + per_seq_s * _decoding(row) + squared_s * _decoding(row) ** 2) for row in free]
    errors = [(own / _without_prefill(row, per_prefill_s) - 1) ** 2 for row, own in rows]
    full = [row for row in rungs if _is_full(row)]
    tokens = [row.output_tokens_per_s / row.requests_per_s for row in rungs]
    return Twin(
        step_s=step_s,
        per_prefill_token_s=per_prefill_s,
        per_seq_s=per_seq_s,
        per_seq_squared_s=squared_s,
        overhead_s=max(short.ttft_sent.mean_s - step_s - per_prefill_s * lengths[0], 0.0),
        slots=round(full[0].server.running) if full and full[0].server is not None else None,
        output_tokens=sum(tokens) / len(tokens),
        error=(sum(errors) / len(errors)) ** 0.5,
    )


def _is_full(row: Measures) -> bool:
    server = row.server
    return server is not None and server.waiting > WAITING_SHARE * (server.running + server.waiting)


def _decoding(row: Measures) -> float:
    """Return the mean number of sequences that decode."""
    return row.requests_per_s * (row.e2e.mean_s - row.ttft.mean_s)


def _without_prefill(row: Measures, per_prefill_s: float) -> float:
    """Return TPOT less what the prompts of others took of it."""
    return row.tpot.mean_s * (1 - per_prefill_s * row.prompt_tokens_per_s)


def _solve(rows: Sequence[Measures], per_prefill_s: float) -> tuple[float, float, float]:
    """Fit TPOT without prefill = a + b n + c n^2, each at least 0: what comes out negative is left out, then again.

    Relative residuals count, as rungs of many users have long steps.
    """
    seen = [(_decoding(row), _without_prefill(row, per_prefill_s)) for row in rows]
    powers = [0, 1, 2] if len(seen) > 3 else [0, 1]
    while True:
        found = _least_squares([[n**power / y for power in powers] for n, y in seen])
        costs = dict(zip(powers, found, strict=True))
        wrong = min(costs, key=lambda power: costs[power])
        if costs[wrong] >= 0 or len(powers) == 1:
            return max(costs.get(0, 0.0), 1e-6), costs.get(1, 0.0), costs.get(2, 0.0)
        powers.remove(wrong)


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the coefficients that make each row's sum nearest to 1: normal equations, Gauss with pivots."""
    size = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) for i in range(size)]
    scaled = [[row[i] / scale[i] for i in range(size)] for row in rows]
    table = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)] + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(table[k][i]))
        table[i], table[pivot] = table[pivot], table[i]
        table[i] = [value / table[i][i] for value in table[i]]
        for k in range(size):
            if k != i:
                table[k] = [a - table[k][i] * b for a, b in zip(table[k], table[i], strict=True)]
    return [table[i][-1] / scale[i] for i in range(size)]
