"""What the flight recorder saw of a run, as arrays on one axis of running time, thinned to what a page can show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evalpipe.control.core import RECORD_S

Values = NDArray[np.float64]

COLUMNS = (
    *("limit", "in_flight", "waiting", "overdue", "stalled", "active"),
    *("tokens_per_s", "requests_per_s", "rejected", "ttft_s", "gradient", "is_paced"),
)
POINTS = 400  # of a line: more than a phone has pixels, fewer than slow a browser down
MEDIAN, MOST, SUM = np.nanmedian, np.nanmax, np.nansum
#: how several rows become one, where not by their median
_THINNED = {
    "overdue": MOST,
    "stalled": MOST,
    "is_paced": MOST,
    "rejected": SUM,
    "requests_per_s": np.nanmean,
    "tokens_per_s": np.nanmean,
}


@dataclass(frozen=True, slots=True)
class Move:
    """One change of the limit. at: seconds on the flight's axis. The limits are None in rows of earlier versions."""

    at: float
    reason: str
    old: float | None = None
    new: float | None = None


@dataclass(frozen=True, slots=True)
class Flight:
    """The rows of a run. Every array is float64[n], NaN where nothing was measured.

    at: seconds of running time; drivers and controllers that followed each other are laid end to end. columns: by name
    of COLUMNS; is_paced is 1 where a quota held something back. shadows: law -> the limit it would have set. begins:
    where a driver or controller after the first began.
    """

    at: Values
    columns: Mapping[str, Values]
    shadows: Mapping[str, Values]
    moves: Sequence[Move]
    begins: Sequence[float] = ()

    def __len__(self) -> int:
        return len(self.at)

    @property
    def seconds(self) -> float:
        return float(self.at[-1]) if len(self.at) else 0.0

    def thinned(self, points: int = POINTS) -> Flight:
        """Return at most so many rows; each stands for as many seconds as the next one."""
        if len(self) <= points:
            return self
        places = np.minimum((self.at / self.at[-1] * points).astype(np.int64), points - 1)
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        groups = np.split(np.arange(len(self)), starts[1:])
        columns = {name: _join(values, groups, name) for name, values in self.columns.items()}
        shadows = {name: _join(values, groups, "limit") for name, values in self.shadows.items()}
        return replace(self, at=self.at[[group[-1] for group in groups]], columns=columns, shadows=shadows)


def flight_of(table: pa.Table) -> Flight:
    """Lay out the rows of `runtime.recorder.read_flight`."""
    own = table["at"].to_numpy().astype(np.float64)
    epoch = table["epoch"].to_numpy()
    # another controller counts from zero again; a driver that died at once may have had one row only
    is_first = np.flatnonzero((np.diff(own) < 0) | (np.diff(epoch) != 0)) + 1
    offsets = np.zeros(len(own))
    for index in is_first.tolist():
        offsets[index:] = offsets[index - 1] + own[index - 1] + RECORD_S
    at = own + offsets
    columns = {name: table[name].cast(pa.float64()).to_numpy() for name in COLUMNS}
    told = [json.loads(text) for text in table["shadows"].to_pylist()]
    names = sorted({name for row in told for name in row})
    shadows = {name: np.array([row.get(name, np.nan) for row in told], dtype=np.float64) for name in names}
    return Flight(at, columns, shadows, _moves(table, at, offsets), tuple(at[is_first].tolist()))


def _moves(table: pa.Table, at: Values, offsets: Values) -> list[Move]:
    moves = []
    rows = zip(table["changes"].to_pylist(), table["reason"].to_pylist(), at.tolist(), offsets.tolist(), strict=True)
    for changes, reason, row_at, offset in rows:
        if changes is None:  # of a version that kept the last reason only
            moves += [Move(row_at, reason)] if reason else []
            continue
        moves += [Move(change["at"] + offset, change["reason"], change["old"], change["new"]) for change in changes]
    return moves


def _join(values: Values, groups: Sequence[NDArray[np.int64]], name: str) -> Values:
    reduce: Any = _THINNED.get(name, MEDIAN)
    return np.array(
        [reduce(values[group]) if np.isfinite(values[group]).any() else np.nan for group in groups], dtype=np.float64
    )
