"""What a page needs of a stored run, read once. Damage is not repaired here: `verify` tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import yaml

from evalpipe.config import Config, parse_config
from evalpipe.errors import ConfigError
from evalpipe.report.flight import Flight, flight_of
from evalpipe.runtime.recorder import read_flight
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.schema import ATTEMPT_SCHEMA
from evalpipe.store.segments import SegmentInfo, read_segment
from evalpipe.store.state import LogState

ATTEMPT_COLUMNS = ["kind", "code", "message", "sent_at", "rtt_s", "in_flight_at_send"]
MOST_ATTEMPTS = 400_000  # rows; of more, every n-th file is read


@dataclass(frozen=True, slots=True)
class Stored:
    """A run as a page shows it.

    summary: as in summary.json. config: as it was last run, None where that cannot be read. attempts: ATTEMPT_COLUMNS.
    note: what the page leaves out, "" if nothing.
    """

    name: str
    summary: Mapping[str, Any]
    config: Config | None
    flight: Flight
    attempts: pa.Table
    note: str = ""


def read_run(store: ObjectStore, state: LogState, summary: Mapping[str, Any]) -> Stored:
    """Raises StateError for a damaged file, NotFound for one that is gone."""
    attempts, share = read_attempts(store, state)
    note = "" if share == 1 else f"Latencies and failures are of every {share}th file of attempts."
    flight = flight_of(read_flight(store, state))
    return Stored(store.url.rstrip("/").rpartition("/")[2], summary, _config(store), flight, attempts, note)


def read_attempts(store: ObjectStore, state: LogState, *, most: int = MOST_ATTEMPTS) -> tuple[pa.Table, int]:
    """Return attempts as the log names them, and of how many files one was read."""
    files = [file.info for file in state.files.values() if file.info.kind == "attempts"]
    share = max(-(-sum(info.rows for info in files) // most), 1)
    empty = ATTEMPT_SCHEMA.empty_table().select(ATTEMPT_COLUMNS)
    return pa.concat_tables([empty, *(_read(store, info) for info in files[::share])]), share


def _read(store: ObjectStore, info: SegmentInfo) -> pa.Table:
    return read_segment(store, info).select(ATTEMPT_COLUMNS).replace_schema_metadata(None)


def _config(store: ObjectStore) -> Config | None:
    try:
        return parse_config(yaml.safe_load(store.get("config.yaml")))
    except (NotFound, ConfigError, yaml.YAMLError):
        return None
