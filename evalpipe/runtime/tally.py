"""What a worker counts of itself for the panel: totals, recent rate, CPU share, lateness of its loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from evalpipe.records import Completion, Result, Status
from evalpipe.runtime.messages import Counters

KEEP_RTTS = 2_000


class Tally:
    """Totals since the start of this process, for the panel. now: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.retries = 0
        self._finished = self._answered = self._correct = self._scored = 0
        self._prompt_tokens = self._output_tokens = 0
        self._failures: dict[str, int] = {}
        self._rtts: list[float] = []
        self._rate_since, self._rate_count, self._rate = now(), 0, 0.0

    def note_result(self, result: Result) -> None:
        self._finished += 1
        self._rate_count += 1
        if result.status == Status.FAILED:
            kind = result.error_kind or "unknown"
            self._failures[kind] = self._failures.get(kind, 0) + 1
            return
        self._answered += 1
        self._scored += result.correct is not None
        self._correct += bool(result.correct)

    def note_answer(self, completion: Completion) -> None:
        self._prompt_tokens += completion.prompt_tokens
        self._output_tokens += completion.output_tokens
        if len(self._rtts) < KEEP_RTTS:
            self._rtts.append(completion.rtt_s)

    def recent_rate(self) -> float:
        """Results a second over the last second or so."""
        now = self._now()
        if now - self._rate_since >= 1.0:
            self._rate = self._rate_count / (now - self._rate_since)
            self._rate_since, self._rate_count = now, 0
        return self._rate

    def take_rtts(self) -> tuple[float, ...]:
        rtts, self._rtts = tuple(self._rtts), []
        return rtts

    def counters(self) -> Counters:
        return Counters(
            finished=self._finished,
            answered=self._answered,
            correct=self._correct,
            scored=self._scored,
            retries=self.retries,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            failures=dict(self._failures),
        )


class Usage:
    """CPU share of this process and lateness of its loop, since the last reading."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._wall, self._cpu, self._lag = now(), time.process_time(), 0.0
        self._share = 0.0

    def note_lag(self, lag_s: float) -> None:
        self._lag = max(self._lag, lag_s)

    def read(self) -> tuple[float, float]:
        wall, cpu = self._now(), time.process_time()
        if wall - self._wall >= 0.2:
            self._share = (cpu - self._cpu) / (wall - self._wall)
            self._wall, self._cpu = wall, cpu
        lag, self._lag = self._lag, 0.0
        return self._share, lag
