"""What a test says in numbers. Formulas stand in the docstrings; names in JSON are those of `vllm bench serve`.

Rates are of what came inside the window [w0, w1): neither ramp nor drain is in them. Latencies are of the requests
scheduled inside it, followed to their end wherever that lies. Unfinished ones count as longer than their age.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalpipe.loadtest.arrivals import gaps_of
from evalpipe.loadtest.quantiles import PERCENTILES, Spread, Value, spread
from evalpipe.loadtest.records import UNFINISHED, Request, ServerSample, Window
from evalpipe.loadtest.slo import Slo

MIN_BLOCK_S, BLOCK_LATENCIES = 5.0, 3.0


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What the server said of itself in the window; None where its /metrics has no such number.

    preemptions: more than before in the window. waiting, running, kv_used: means. waiting_end: at the window's end.
    """

    preemptions: float | None = None
    running: float = 0.0
    waiting: float = 0.0
    waiting_end: float = 0.0
    kv_used: float | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """One row. Latencies in seconds.

    offered: requests scheduled in the window. completed: answers that ended in it. errors: of the offered, by kind.
    unfinished: of the offered, when the test stopped. ttft, e2e: from the schedule; ttft_sent: from the send.
    tpot = (last - first) / (output tokens - 1) of answers. itl: gaps between chunks of the stream, pooled.
    lateness: sent - scheduled. in_flight: mean over the window, area under it / its length. in_flight_peak: most.
    bad: of the offered, those that broke the SLO. preemption_rate: preemptions per request that was taken in, can
    exceed 1; per request offered, taken in or not: preemptions / offered.
    """

    window: Window
    offered: int
    completed: int
    errors: Mapping[str, int]
    unfinished: int
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft: Spread
    ttft_sent: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    lateness: Spread
    in_flight: float
    in_flight_peak: int
    bad: int
    good_per_s: float
    server: ServerSide | None = None

    @property
    def offered_per_s(self) -> float:
        return self.offered / self.window.length_s

    @property
    def bad_share(self) -> float:
        return self.bad / self.offered if self.offered else 0.0

    @property
    def error_share(self) -> float:
        return sum(self.errors.values()) / self.offered if self.offered else 0.0

    @property
    def preemption_rate(self) -> float | None:
        taken = self.offered - sum(self.errors.values())
        if self.server is None or self.server.preemptions is None or taken <= 0:
            return None
        return self.server.preemptions / taken

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; milliseconds and names as `vllm bench serve` has them, ours beside."""
        body: dict[str, Any] = {
            "duration": self.window.length_s,
            "completed": self.completed,
            "request_throughput": self.requests_per_s,
            "request_goodput": self.good_per_s,
            "output_throughput": self.output_tokens_per_s,
            "total_token_throughput": self.output_tokens_per_s + self.prompt_tokens_per_s,
            "offered": self.offered,
            "offered_throughput": self.offered_per_s,
            "errors": dict(self.errors),
            "unfinished": self.unfinished,
            "in_flight": self.in_flight,
            "max_concurrent_requests": self.in_flight_peak,
            "slo_violations": self.bad,
            "preemption_rate": self.preemption_rate,
        }
        names = {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2el": self.e2e}
        for name, each in {**names, "ttft_sent": self.ttft_sent, "lateness": self.lateness}.items():
            body |= _in_ms(name, each)
        return body


def measure(
    requests: Sequence[Request],
    window: Window,
    *,
    ended_at: float,
    slo: Slo,
    samples: Sequence[ServerSample] = (),
) -> Measures:
    """Return the row of one test. ended_at: when nothing more was awaited; ages count to it."""
    cohort = [request for request in requests if window.holds(request.scheduled_at)]
    answers = [request for request in cohort if request.is_ok]
    taken = [request for request in cohort if not request.is_error]
    e2e_values = [_value(request, request.ended_at, ended_at) for request in taken]
    known = sorted(value.seconds for value in e2e_values)
    block_s = max(MIN_BLOCK_S, BLOCK_LATENCIES * known[len(known) // 2]) if known else MIN_BLOCK_S
    bad = sum(slo.is_bad(request, now=ended_at) for request in cohort)
    done = [request for request in requests if request.is_ok and window.holds(request.ended_at or math.inf)]
    first = [request for request in requests if request.first_at is not None and window.holds(request.first_at)]
    return Measures(
        window=window,
        offered=len(cohort),
        completed=len(done),
        errors=dict(Counter(request.kind for request in cohort if request.is_error)),
        unfinished=sum(request.kind == UNFINISHED for request in cohort),
        requests_per_s=len(done) / window.length_s,
        output_tokens_per_s=sum(tokens_inside(request, window, ended_at) for request in requests) / window.length_s,
        prompt_tokens_per_s=sum(request.prompt_tokens for request in first) / window.length_s,
        ttft=spread([_value(request, request.first_at, ended_at) for request in taken], block_s=block_s),
        ttft_sent=spread(
            [_value(request, request.first_at, ended_at, since=request.sent_at) for request in taken], block_s=block_s
        ),
        tpot=spread(list(_tpots(answers)), block_s=block_s),
        itl=spread(list(_gaps(answers)), block_s=block_s),
        e2e=spread(e2e_values, block_s=block_s),
        lateness=spread([Value(r.scheduled_at, r.lateness_s) for r in cohort], block_s=block_s),
        in_flight=_mean_in_flight(requests, window, ended_at),
        in_flight_peak=_peak_in_flight(requests, window, ended_at),
        bad=bad,
        good_per_s=(len(cohort) - bad) / window.length_s,
        server=server_side(samples, window),
    )


def tokens_inside(request: Request, window: Window, ended_at: float) -> float:
    """Return the output tokens of a request that came inside the window.

    By the stamps of its chunks, each with an equal share of the tokens; without stamps, spread evenly from the first
    token to the last.
    """
    if request.first_at is None or not request.output_tokens:
        return 0.0
    if request.chunks_at:
        inside = sum(map(window.holds, request.chunks_at))
        return request.output_tokens * inside / len(request.chunks_at)
    end = ended_at if request.ended_at is None else request.ended_at
    if end <= request.first_at:
        return request.output_tokens * window.holds(request.first_at)
    return request.output_tokens * window.overlap_s(request.first_at, end) / (end - request.first_at)


def server_side(samples: Sequence[ServerSample], window: Window) -> ServerSide | None:
    """Return the server's own counters over the window; a counter that falls began again at 0 (a restart)."""
    inside = [sample for sample in samples if window.start <= sample.at <= window.end]
    if len(inside) < 2:
        return None
    counts = [sample.preemptions for sample in inside if sample.preemptions is not None]
    rises = [rise if rise >= 0 else counts[i + 1] for i, rise in enumerate(gaps_of(counts))]
    kv = [sample.kv_used for sample in inside if sample.kv_used is not None]
    return ServerSide(
        preemptions=sum(rises) if len(counts) > 1 else None,
        running=sum(sample.running for sample in inside) / len(inside),
        waiting=sum(sample.waiting for sample in inside) / len(inside),
        waiting_end=inside[-1].waiting,
        kv_used=sum(kv) / len(kv) if kv else None,
    )


def _value(request: Request, until: float | None, ended_at: float, *, since: float | None = None) -> Value:
    begin = request.scheduled_at if since is None else since
    return Value(request.scheduled_at, (ended_at if until is None else until) - begin, is_open=until is None)


def _tpots(answers: Sequence[Request]) -> Iterator[Value]:
    for request in answers:
        if request.first_at is not None and request.ended_at is not None and request.output_tokens > 1:
            yield Value(request.scheduled_at, (request.ended_at - request.first_at) / (request.output_tokens - 1))


def _gaps(answers: Sequence[Request]) -> Iterator[Value]:
    for request in answers:
        for gap_s in gaps_of(request.chunks_at):
            yield Value(request.scheduled_at, gap_s)


def _mean_in_flight(requests: Sequence[Request], window: Window, ended_at: float) -> float:
    ends = (ended_at if request.ended_at is None else request.ended_at for request in requests)
    area = sum(window.overlap_s(request.sent_at, end) for request, end in zip(requests, ends, strict=True))
    return area / window.length_s


def _peak_in_flight(requests: Sequence[Request], window: Window, ended_at: float) -> int:
    moves = [(request.sent_at, 1) for request in requests]
    moves += [(request.ended_at, -1) for request in requests if request.ended_at is not None]
    level = peak = 0
    for at, step in sorted(moves):
        if at >= window.end:
            break
        level += step
        if at >= window.start:
            peak = max(peak, level)
    return peak


def _in_ms(name: str, each: Spread) -> dict[str, Any]:
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None or math.isnan(seconds) else 1000 * seconds

    found = {f"mean_{name}_ms": ms(each.mean_s), f"std_{name}_ms": ms(each.deviation_s)}
    found[f"median_{name}_ms"] = ms(each.seconds(50.0))
    for percentile in PERCENTILES:
        quantile = each.by_percentile.get(percentile)
        label = f"p{percentile:g}_{name}_ms"
        found[label] = None if quantile is None else ms(quantile.seconds)
        if quantile is not None:
            found[f"{label}_low"], found[f"{label}_high"] = ms(quantile.low), ms(quantile.high)
    return found
