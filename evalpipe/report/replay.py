"""What really happened in a run, and what other laws make of the same work: read, replayed, and told as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evalpipe.config import ControlConfig
from evalpipe.control.build import build_law, resolve_law
from evalpipe.control.law import Law
from evalpipe.control.observation import Outcome
from evalpipe.endpoint.failures import outcome_of
from evalpipe.errors import ConfigError
from evalpipe.report.flight import Flight, flight_of
from evalpipe.report.source import read_attempts
from evalpipe.runtime.recorder import read_flight
from evalpipe.sim.batching import BatchingParams
from evalpipe.sim.profiles import Profile, profile
from evalpipe.sim.replay import AMPLE, Replayed, Seen, fit, replay
from evalpipe.store.log import read_state
from evalpipe.store.objects import ObjectStore
from evalpipe.store.rows import read_all

COLUMNS = ["prompt_tokens", "output_tokens", "rtt_s", "ttft_s", "sent_at"]
RIVALS = ("gradient", "progress", "aimd")  # raced where no law is named
HAPPENED = "what happened"
HEADER = ("", "time", "x run", "rejected", "P50", "P99", "TTFT P50", "in flight", "left")


@dataclass(frozen=True, slots=True)
class Replay:
    """rows: what happened, then the run's own law, then the others. server: in words."""

    server: str
    rows: Sequence[Replayed]

    def to_dict(self) -> dict[str, Any]:
        return {"server": self.server, "rows": [asdict(row) for row in self.rows]}


def replay_run(
    store: ObjectStore, control: ControlConfig, *, laws: Sequence[str] = (), server: str | None = None
) -> Replay:
    """Replay a stored run. laws: () for those usually raced. server: a profile's name, None to fit one.

    Raises ConfigError for an unknown law or profile and for a run without answers, StateError for damaged data.
    """
    for name in laws:
        resolve_law(name)  # before seconds are spent on a fit
    state = read_state(store)
    attempts, share = read_attempts(store, state)
    flight = flight_of(read_flight(store, state))
    answers = _answers(read_all(store, state).select(COLUMNS))
    seen = seen_of(answers, flight)
    chosen = profile(server) if server is not None else fit(seen)
    own = resolve_law(control.law)[0]
    others = [name for name in laws or RIVALS if name != own]
    entrants = [
        (f"{own}, as it ran", partial(_own_law, control)),
        *((name, partial(build_law, name)) for name in others),
    ]
    rows = replay(seen, chosen, entrants)
    return Replay(_server_words(chosen, seen, fitted=server is None), [_happened(seen, attempts, share), *rows])


def format_replay(told: Replay) -> str:
    """Return the table as text of at most 110 columns, and what to make of it."""
    happened, own = told.rows[0], told.rows[1]
    lines = [HEADER, *(_cells(row, happened.seconds) for row in told.rows)]
    text = [f"{line[0]:<28.28}" + "".join(cell.rjust(10) for cell in line[1:]) for line in lines]
    off = abs(own.seconds / happened.seconds - 1.0)
    trust = f"The run's own law comes within {off:.0%} of what happened"
    word = "so differences between laws beyond that mean something" if off <= 0.1 else "so trust the order only"
    return "\n".join([told.server, "", *(line.rstrip() for line in text), "", f"{trust}, {word}."])


def seen_of(answers: pa.Table, flight: Flight) -> Seen:
    """Put together what a run saw of its server. answers: COLUMNS of answered rows, in the order of sending."""
    sent_at = answers["sent_at"].cast(pa.int64()).to_numpy() / 1e6
    rtt_s = _floats(answers, "rtt_s")
    if len(flight) > 1:
        seconds, mean = flight.seconds, float(flight.columns["in_flight"].mean())
    else:
        seconds = max(float((sent_at + rtt_s).max() - sent_at.min()), 1e-3)
        mean = float(rtt_s.sum()) / seconds  # Little's law
    return Seen(
        prompt_tokens=_counts(answers, "prompt_tokens"),
        output_tokens=_counts(answers, "output_tokens"),
        sent_at=sent_at,
        rtt_s=rtt_s,
        ttft_s=_floats(answers, "ttft_s"),
        seconds=seconds,
        mean_in_flight=mean,
    )


def _answers(table: pa.Table) -> pa.Table:
    """Keep the rows with an answer and its token counts, in the order of sending."""
    answered = table.filter(pc.is_valid(table["output_tokens"]))
    if not answered.num_rows:
        raise ConfigError("nothing to replay: the run has no answer with token counts")
    return answered.sort_by([("sent_at", "ascending")])


def _own_law(control: ControlConfig) -> Law:
    start, low, high = control.start, control.min_limit, control.max_limit
    return build_law(control.law, start=start, min_limit=low, max_limit=high, **control.options)


def _happened(seen: Seen, attempts: pa.Table, share: int) -> Replayed:
    rejections = share * sum(outcome_of(kind) is Outcome.DROPPED for kind in attempts["kind"].to_pylist())
    p50_s, p99_s = np.quantile(seen.rtt_s, (0.5, 0.99)).tolist()
    streamed = seen.ttft_s[np.isfinite(seen.ttft_s)]
    ttft_s = float(np.median(streamed)) if len(streamed) else float("nan")
    return Replayed(HAPPENED, seen.seconds, rejections, p50_s, p99_s, ttft_s, seen.mean_in_flight)


def _server_words(chosen: Profile, seen: Seen, *, fitted: bool) -> str:
    work = f"{len(seen.rtt_s):,} answers of the run, in virtual time"
    if not fitted:
        return f"{work}; server: profile {chosen.name}, as asked"
    server = chosen.server
    assert isinstance(server, BatchingParams), "a fitted server is a batching one"
    most = f"no queue was seen: nothing is known of it above {seen.running().max():.0f} at once"
    return (
        f"{work}; server fitted to them: step {server.step_s * 1e3:.2f} ms + {server.per_seq_s * 1e6:.1f} us a sequence"
        f" + {server.per_prefill_token_s * 1e6:.1f} us a prompt token,"
        f" {f'{server.slots} slots' if server.slots < AMPLE else most}"
    )


def _cells(row: Replayed, seconds: float) -> tuple[str, ...]:
    return (
        row.label,
        f"{row.seconds:.1f} s",
        f"{row.seconds / seconds:.2f}",
        f"{row.rejections:,}",
        *(f"{value:.2f} s" if value == value else "-" for value in (row.p50_s, row.p99_s, row.ttft_p50_s)),
        f"{row.mean_in_flight:.1f}",
        f"{row.unfinished:,}" if row.unfinished else "",
    )


def _floats(table: pa.Table, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = table[name].cast(pa.float64()).to_numpy()  # null becomes NaN
    return values


def _counts(table: pa.Table, name: str) -> NDArray[np.int64]:
    return _floats(table, name).astype(np.int64)
