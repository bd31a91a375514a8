"""Honesty checks on a row: was the client on time, was the traffic what it should be, do the numbers agree?

A slow client looks like a slow server. What the client itself did wrong makes a row invalid; numbers that do not agree
with each other are told and left to the reader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evalpipe.loadtest.arrivals import Traffic
from evalpipe.loadtest.measures import Measures

MAX_LATENESS_S = 0.005  # P99, or a twentieth of the median TTFT where that is more
LATENESS_SHARE = 0.05
MAX_LAG_S = 0.010  # an event loop that wakes later stamps later
MAX_CPU_SHARE = 0.7  # above it a core queues: latencies of the client's own
MIN_KS_P = 0.01
ACCOUNTING = 0.10  # Little's law and tokens a request hold for long windows; one of a minute has ends


@dataclass(frozen=True, slots=True)
class Client:
    """The client's own state during a row. cpu_share: of one core, of its busiest process. lag_p99_s: of its loops.

    planned, sent: the schedule and what became of it, in the window; None in closed loop.
    """

    cpu_share: float = 0.0
    lag_p99_s: float = 0.0
    planned: Traffic | None = None
    sent: Traffic | None = None


def client_faults(measures: Measures, client: Client) -> list[str]:
    """Return why the client, not the server, made this row what it is; empty where it did not."""
    faults = []
    ttft_s = measures.ttft.seconds(50.0)
    limit_s = max(MAX_LATENESS_S, 0.0 if math.isnan(ttft_s) else LATENESS_SHARE * ttft_s)
    late_s = measures.lateness.seconds(99.0)
    if client.sent is not None and late_s > limit_s:
        faults.append(
            f"sent late: P99 {1000 * late_s:.1f} ms after the schedule, at most {1000 * limit_s:.1f} ms is good"
        )
    if client.lag_p99_s > MAX_LAG_S:
        faults.append(f"the client's event loop woke {1000 * client.lag_p99_s:.1f} ms late (P99)")
    if client.cpu_share > MAX_CPU_SHARE:
        faults.append(f"the client used {100 * client.cpu_share:.0f} % of a core; give it more workers")
    if client.planned is not None and client.sent is not None:
        faults += _traffic_faults(client.planned, client.sent)
    return faults


def accounting_notes(measures: Measures, *, is_stable: bool) -> list[str]:
    """Return what in a row does not add up. Without a steady state Little's law says nothing."""
    notes = []
    slack = ACCOUNTING + 2 / math.sqrt(max(measures.offered, 1))
    if measures.completed > measures.offered * (1 + slack) + 1:
        notes.append(f"more answers ({measures.completed}) than requests ({measures.offered}) in the window")
    if is_stable and measures.in_flight >= 1 and not math.isnan(measures.e2e.mean_s):
        expected = measures.offered_per_s * (1 - measures.error_share) * measures.e2e.mean_s
        if abs(expected - measures.in_flight) > slack * measures.in_flight:
            notes.append(
                f"Little's law: {measures.in_flight:.1f} in flight, but requests/s x latency are {expected:.1f}"
            )
    return notes


def _traffic_faults(planned: Traffic, sent: Traffic) -> list[str]:
    faults = []
    if abs(sent.count - planned.count) > max(0.01 * planned.count, 3):
        faults.append(f"{sent.count} requests were sent where {planned.count} were due")
    if sent.ks_p < MIN_KS_P <= planned.ks_p:
        faults.append(f"the gaps that were sent are not those that were drawn (KS p {sent.ks_p:.4f})")
    return faults
