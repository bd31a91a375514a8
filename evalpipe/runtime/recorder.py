"""The flight recorder: what control saw and did, twice a second, as Parquet in the run's control/ folder.

A row is a tick with the moves of the limit since the row before.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from evalpipe.control.core import Tick, TimedChange
from evalpipe.control.warm import Settling
from evalpipe.store.log import Log
from evalpipe.store.objects import ObjectStore
from evalpipe.store.schema import conform
from evalpipe.store.segments import read_segment, write_segment
from evalpipe.store.state import LogState

log = logging.getLogger(__name__)

EVERY_ROWS = 600  # five minutes of ticks a file
KEEP_ROWS = 20_000
FLUSH_S = 60.0  # of ticks: what a killed driver takes with it

_CHANGE = pa.struct(
    [
        pa.field("at", pa.float64()),  # as the row's
        pa.field("old", pa.float64()),  # the law's number before
        pa.field("new", pa.float64()),  # and after
        pa.field("reason", pa.string()),  # one word of control.law.REASONS
        pa.field("baseline_s", pa.float64()),  # latencies as the law judged them
        pa.field("recent_s", pa.float64()),
        pa.field("gradient", pa.float64()),
        pa.field("overdue", pa.int32()),
        pa.field("tokens_per_s", pa.float64()),
        pa.field("samples", pa.int32()),
        pa.field("state", pa.string()),  # the law's own word for where it is
        pa.field("per_work", pa.bool_()),  # latencies are per unit of work
    ]
)
CONTROL_SCHEMA = pa.schema(
    [
        pa.field("at", pa.float64(), nullable=False),  # seconds since this controller began
        pa.field("wall_at", pa.timestamp("us", tz="UTC")),  # the same instant for people, within half a second
        pa.field("limit", pa.float64(), nullable=False),  # the law's number; permits are its floor
        pa.field("in_flight", pa.int32(), nullable=False),  # requests out, as the workers last said
        pa.field("waiting", pa.int32(), nullable=False),  # of those, without a first token
        pa.field("overdue", pa.int32()),  # of those waiting, past the time that an idle server needs
        pa.field("stalled", pa.int32()),  # streams that began and went silent
        pa.field("active", pa.int32()),  # in flight less overdue and stalled: what really runs
        pa.field("tokens_per_s", pa.float64(), nullable=False),  # output tokens since the row before
        pa.field("requests_per_s", pa.float64(), nullable=False),  # answers since the row before
        pa.field("rejected", pa.int32(), nullable=False),  # 429, 503, 529 since the row before
        pa.field("ttft_s", pa.float64()),  # median of the answers since the row before; null: none was streamed
        pa.field("baseline_s", pa.float64()),  # unloaded latency per unit of work
        pa.field("recent_s", pa.float64()),  # latency per unit of work now
        pa.field("gradient", pa.float64()),  # baseline / recent, unclamped
        pa.field("pace", pa.float64()),  # requests a second that a quota allows; null: there is none
        pa.field("is_paced", pa.bool_()),  # the quota held something back since the row before
        pa.field("reason", pa.string(), nullable=False),  # of the last move since the row before, "" if none
        pa.field("changes", pa.list_(_CHANGE)),  # every move since the row before, with its evidence
        pa.field("workers", pa.int32(), nullable=False),  # that hold a lease
        pa.field("shadows", pa.string(), nullable=False),  # JSON: limit that another law would have set (not obeyed)
        pa.field("epoch", pa.int64(), nullable=False),  # of the driver
    ]
)


@dataclass(slots=True)
class _Row:
    tick: Tick
    epoch: int
    wall_at: float | None
    changes: list[Mapping[str, Any]]

    def __getattr__(self, name: str) -> object:
        return getattr(self.tick, name)

    @property
    def active(self) -> int:
        return self.tick.in_flight - self.tick.overdue - self.tick.stalled

    @property
    def shadows(self) -> str:
        return json.dumps(dict(self.tick.shadows), sort_keys=True)


class Recorder:
    """Collects ticks and changes and writes them as files of the log. settling: where this run's limit settles.

    wall: seconds since the Unix epoch, asked once a controller; None: rows tell no time of day.
    """

    def __init__(self, store: ObjectStore, run_log: Log, *, wall: Callable[[], float] | None = None) -> None:
        self._store, self._log, self._wall = store, run_log, wall
        self.settling = Settling()
        self._rows: list[_Row] = []
        self._batch: list[_Row] = []  # of the file with number _seq; the same over all tries to write it
        self._seq = 0
        self._early: list[TimedChange] = []  # changes whose row has not come yet
        self._last_at = 0.0
        self._began: float | None = None  # wall time of second 0 of this controller

    def add(self, ticks: Sequence[Tick], changes: Sequence[TimedChange] = ()) -> None:
        """Take in what a controller told since the last time. Raises Fenced."""
        fresh = [self._row(tick, newest_at=ticks[-1].at) for tick in ticks]
        self._place([*self._early, *changes], fresh)
        self._rows += fresh
        if len(self._rows) >= EVERY_ROWS or self._is_due:
            self.flush()

    def flush(self) -> None:
        """Write and commit what was collected; rows that storage refuses are kept for the next time. Raises Fenced."""
        if self._rows:
            self._rows[-1].changes += map(_plain, self._early)  # the last ones have no row after them
            self._early = []
        while self._batch or self._rows:
            if not self._batch:
                self._batch, self._rows = self._rows, []
                self._seq += 1
            try:
                self._write()
            except OSError as error:
                log.warning("control rows not written: %s", error)
                del self._rows[:-KEEP_ROWS]
                return
            self._batch = []

    @property
    def _is_due(self) -> bool:
        return bool(self._rows) and self._rows[-1].tick.at - self._rows[0].tick.at >= FLUSH_S

    def _row(self, tick: Tick, *, newest_at: float) -> _Row:
        if self._wall is not None and (self._began is None or tick.at < self._last_at):  # of another controller
            self._began = self._wall() - newest_at
        self._last_at = tick.at
        self.settling.add(limit=tick.limit, in_flight=tick.in_flight, stuck=tick.overdue + tick.stalled)
        return _Row(tick, self._log.epoch, None if self._began is None else self._began + tick.at, [])

    def _place(self, changes: Sequence[TimedChange], rows: Sequence[_Row]) -> None:
        """Give each change to the first row that is not before it; later ones wait for theirs."""
        self._early = []
        ends = [row.tick.at for row in rows]
        for timed in changes:
            place = bisect_left(ends, timed.at)
            if place == len(rows):
                self._early.append(timed)
            else:
                rows[place].changes.append(_plain(timed))

    def _write(self) -> None:
        info = write_segment(
            self._store,
            self._batch,
            epoch=self._log.epoch,
            writer=self._log.writer,
            worker="driver",
            seq=self._seq,
            spec_sha256=self._log.state.spec_sha256,
            kind="control",
            schema=CONTROL_SCHEMA,
        )
        self._log.commit([info])


def _plain(timed: TimedChange) -> Mapping[str, Any]:
    change = timed.change
    move = {"at": timed.at, "old": change.old, "new": change.new, "reason": change.reason}
    return {**move, **asdict(change.evidence)}


def read_flight(store: ObjectStore, state: LogState) -> pa.Table:
    """Return all rows that the log names, oldest first, with the columns of CONTROL_SCHEMA; memory holds them all.

    Raises StateError for a damaged file, NotFound for one that is gone.
    """
    tables = list(newest_first(store, state))[::-1]
    return pa.concat_tables(tables or [CONTROL_SCHEMA.empty_table()])


def newest_first(store: ObjectStore, state: LogState) -> Iterator[pa.Table]:
    """Yield the rows file by file, the last file first; see read_flight."""
    for file in reversed([file.info for file in state.files.values() if file.info.kind == "control"]):
        yield conform(read_segment(store, file), CONTROL_SCHEMA)
