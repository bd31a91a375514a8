"""The flight recorder: what control saw and did, twice a second, as Parquet in the run's control/ folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from evalpipe.control.core import Tick
from evalpipe.store.log import Log
from evalpipe.store.objects import ObjectStore
from evalpipe.store.segments import write_segment

log = logging.getLogger(__name__)

EVERY_ROWS = 600  # five minutes of ticks a file
KEEP_ROWS = 20_000

CONTROL_SCHEMA = pa.schema(
    [
        pa.field("at", pa.float64(), nullable=False),  # seconds since the controller of this epoch began
        pa.field("limit", pa.float64(), nullable=False),  # the law's number; permits are its floor
        pa.field("in_flight", pa.int32(), nullable=False),  # requests out, as the workers last said
        pa.field("waiting", pa.int32(), nullable=False),  # of those, without a first token
        pa.field("tokens_per_s", pa.float64(), nullable=False),  # output tokens since the row before
        pa.field("requests_per_s", pa.float64(), nullable=False),  # answers since the row before
        pa.field("rejected", pa.int32(), nullable=False),  # 429, 503, 529 since the row before
        pa.field("baseline_s", pa.float64()),  # unloaded latency per unit of work
        pa.field("recent_s", pa.float64()),  # latency per unit of work now
        pa.field("gradient", pa.float64()),  # baseline / recent, unclamped
        pa.field("reason", pa.string(), nullable=False),  # of the last move since the row before, "" if none
        pa.field("workers", pa.int32(), nullable=False),  # that hold a lease
        pa.field("shadows", pa.string(), nullable=False),  # JSON: limit that another law would have set (not obeyed)
        pa.field("epoch", pa.int64(), nullable=False),  # of the driver
    ]
)


@dataclass(frozen=True, slots=True)
class _Row:
    tick: Tick
    epoch: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.tick, name)

    @property
    def shadows(self) -> str:
        return json.dumps(dict(self.tick.shadows), sort_keys=True)


class Recorder:
    """Collects ticks and writes them as files of the log."""

    def __init__(self, store: ObjectStore, run_log: Log) -> None:
        self._store, self._log = store, run_log
        self._rows: list[_Row] = []
        self._batch: list[_Row] = []  # of the file with number _seq; the same over all tries to write it
        self._seq = 0

    def add(self, ticks: Sequence[Tick]) -> None:
        self._rows.extend(_Row(tick, self._log.epoch) for tick in ticks)
        if len(self._rows) >= EVERY_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write and commit what was collected; rows that storage refuses are kept for the next time. Raises Fenced."""
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
