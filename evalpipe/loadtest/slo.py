"""What a request must meet to be good: limits on its latencies, and the share of requests that must meet them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalpipe.errors import ConfigError
from evalpipe.loadtest.records import Request

NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s"}  # as `vllm bench serve --goodput` calls them


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds, None: none. attainment: share of requests that must be good; 0.99 is a P99 below the limit."""

    ttft_s: float | None = 0.2
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.99

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.ttft_s, self.tpot_s, self.e2e_s) if limit is not None]
        if not limits or min(limits) <= 0:
            raise ConfigError(f"an SLO needs at least one limit above 0, got {self}")
        if not 0.5 <= self.attainment < 1:
            raise ConfigError(f"attainment must lie in [0.5, 1), got {self.attainment:g}")

    @property
    def allowed(self) -> float:
        """Share of requests that may be bad."""
        return 1 - self.attainment

    def is_bad(self, request: Request, *, now: float) -> bool:
        """Say whether the request broke a limit, or has by now: errors break all, age counts for what has not come."""
        return request.is_error or any(seconds > limit for _, seconds, limit in self._measured(request, now))

    def binding(self, requests: Sequence[Request], *, now: float) -> str:
        """Return the name of the limit that most of the requests break; "errors" where those are more; "" for none."""
        broken = ["errors" for request in requests if request.is_error]
        broken += [
            name for request in requests for name, seconds, limit in self._measured(request, now) if seconds > limit
        ]
        return max(sorted(set(broken)), key=broken.count, default="")

    def _measured(self, request: Request, now: float) -> Iterator[tuple[str, float, float]]:
        if request.is_error:
            return
        end = now if request.ended_at is None else request.ended_at
        if self.ttft_s is not None:
            yield "ttft", (end if request.first_at is None else request.first_at) - request.scheduled_at, self.ttft_s
        if self.e2e_s is not None:
            yield "e2el", end - request.scheduled_at, self.e2e_s
        if self.tpot_s is not None and request.first_at is not None and request.output_tokens > 1:
            yield "tpot", (end - request.first_at) / (request.output_tokens - 1), self.tpot_s


def parse_slo(texts: Sequence[str], *, attainment: float = 0.99) -> Slo:
    """Read NAME:MILLISECONDS texts, e.g. ttft:200 tpot:50, as `vllm bench serve --goodput` takes them.

    Without a text: TTFT 200 ms. Raises ConfigError.
    """
    if not texts:
        return Slo(attainment=attainment)
    limits: dict[str, float | None] = dict.fromkeys(NAMES.values())
    for text in texts:
        name, _, number = text.partition(":")
        try:
            limits[NAMES[name]] = float(number) / 1000
        except (KeyError, ValueError):
            raise ConfigError(f"an SLO is NAME:MILLISECONDS with {', '.join(NAMES)}, got {text!r}") from None
    return Slo(ttft_s=limits["ttft_s"], tpot_s=limits["tpot_s"], e2e_s=limits["e2e_s"], attainment=attainment)
