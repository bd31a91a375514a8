"""From the requests of one test to its row: measured, checked, judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalpipe.loadtest.arrivals import look_at
from evalpipe.loadtest.checks import Client, accounting_notes, client_faults
from evalpipe.loadtest.measures import BLOCK_LATENCIES, MIN_BLOCK_S, Measures, measure
from evalpipe.loadtest.probe import Block, Point, Probe
from evalpipe.loadtest.records import LoadRun, Moment, Request, Window
from evalpipe.loadtest.slo import Slo
from evalpipe.loadtest.stability import Stability, stability
from evalpipe.loadtest.verdict import judge

RECOVERY_BLOCK_S = 5.0
NORMAL_BAD_SHARE = 0.1  # TTFT P90 within its limit


def make_point(
    probe: Probe, run: LoadRun, *, slo: Slo, client: Client | None = None, best_tokens_per_s: float = 0.0
) -> Point:
    """Return the row. A test that was cut short is measured up to there.

    best_tokens_per_s: of the usable rows before it.
    """
    requests, ended_at = run.requests, run.ended_at
    window = probe.window
    if run.sent_until < window.end:
        window = Window(window.start, max(run.sent_until, window.start + 1.0))
    measures = measure(requests, window, ended_at=ended_at, slo=slo, samples=run.samples)
    client = client or Client()
    signs = stability(requests, window, now=ended_at) if probe.loop == "open" else Stability()
    faults = client_faults(measures, client)
    cohort = [request for request in requests if window.holds(request.scheduled_at)]
    verdict = judge(
        measures,
        slo=slo,
        is_client_bad=bool(faults),
        is_stable=signs.is_stable,
        is_flooded=run.is_flooded,
        best_tokens_per_s=best_tokens_per_s,
    )
    return Point(
        probe=probe,
        measures=measures,
        stability=signs,
        client=client,
        verdict=verdict,
        notes=(*faults, *accounting_notes(measures, is_stable=signs.is_stable)),
        blocks=_blocks(cohort, measures, slo=slo, now=ended_at),
        binding=slo.binding(cohort, now=ended_at),
        recovery_s=_recovery_s(cohort, window, slo=slo, now=ended_at) if probe.spike else None,
        timeline=timeline(run) if verdict.is_over or probe.spike else (),
    )


def traffic_of(
    client: Client, probe: Probe, planned: Sequence[float], sent: Sequence[float], *, until: float
) -> Client:
    """Return the client with a look at its schedule and at what it sent, both ascending, inside the window.

    until: where sending ended, if that was before the window did.
    """
    window, rate = Window(probe.window.start, min(probe.window.end, until)), probe.level
    return Client(
        client.cpu_share,
        client.lag_p99_s,
        planned=look_at(planned, rate_per_s=rate, start=window.start, end=window.end),
        sent=look_at(sent, rate_per_s=rate, start=window.start, end=window.end),
    )


def _blocks(cohort: Sequence[Request], measures: Measures, *, slo: Slo, now: float) -> tuple[Block, ...]:
    """Cut the window into stretches long enough to be nearly independent; the last takes the rest."""
    latency_s = measures.e2e.seconds(50.0)
    block_s = max(MIN_BLOCK_S, BLOCK_LATENCIES * latency_s if latency_s == latency_s else 0.0)
    window = measures.window
    count = max(int(window.length_s / block_s), 1)
    offered, bad = [0] * count, [0] * count
    for request in cohort:
        index = min(int((request.scheduled_at - window.start) / block_s), count - 1)
        offered[index] += 1
        bad[index] += slo.is_bad(request, now=now)
    return tuple(Block(n, k) for n, k in zip(offered, bad, strict=True))


def timeline(run: LoadRun) -> tuple[Moment, ...]:
    """Return what the server did between two looks at its counters, and the tokens that came meanwhile."""
    tokens: dict[int, float] = {}
    for request in run.requests:
        for second, share in _tokens_by_second(request, run.ended_at):
            tokens[second] = tokens.get(second, 0.0) + share
    moments = []
    for before, after in ((run.samples[i], run.samples[i + 1]) for i in range(len(run.samples) - 1)):
        rise = (after.preemptions or 0.0) - (before.preemptions or 0.0)
        flow = tokens.get(int(before.at), 0.0)
        moments.append(Moment(after.at, flow, after.running, after.waiting, max(rise, 0.0), after.kv_used))
    return tuple(moments)


def _tokens_by_second(request: Request, ended_at: float) -> Iterator[tuple[int, float]]:
    """Yield (second, tokens) of one request, by its chunks or evenly between first and last token."""
    if request.first_at is None:
        return
    if request.chunks_at:
        for at in request.chunks_at:
            yield int(at), request.output_tokens / len(request.chunks_at)
        return
    end = ended_at if request.ended_at is None else request.ended_at
    for second in range(int(request.first_at), int(end) + 1):
        part = Window(second, second + 1).overlap_s(request.first_at, end)
        yield second, request.output_tokens * part / max(end - request.first_at, 1e-9)


def _recovery_s(cohort: Sequence[Request], window: Window, *, slo: Slo, now: float) -> float | None:
    """Return the end of the last stretch in which more than a tenth broke the SLO; None where that is the last one."""
    count = max(int(window.length_s / RECOVERY_BLOCK_S), 1)
    flags: list[list[bool]] = [[] for _ in range(count)]
    for request in cohort:
        index = min(int((request.scheduled_at - window.start) / RECOVERY_BLOCK_S), count - 1)
        flags[index].append(slo.is_bad(request, now=now))
    late = [i for i, each in enumerate(flags) if each and sum(each) > NORMAL_BAD_SHARE * len(each)]
    if not late:
        return 0.0
    return None if late[-1] == count - 1 else (late[-1] + 1) * RECOVERY_BLOCK_S
