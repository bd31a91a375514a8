"""What a load test leaves behind: every request in Parquet, one file a row, and the result as JSON.

<output>/<name>/requests/000.parquet ..    written as soon as a row is there
<output>/<name>/result.json, report.html   at the end, also at an early one
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from evalpipe.loadtest.probe import Point
from evalpipe.loadtest.records import Request
from evalpipe.store.objects import ObjectStore, probe
from evalpipe.store.open import open_store

RESULT, PAGE = "result.json", "report.html"

#: Instants in seconds since the row began; null: it did not come to that.
SCHEMA = pa.schema(
    [
        ("loop", pa.string()),  # closed, open
        ("level", pa.float64()),  # users, or requests/s
        ("in_window", pa.bool_()),  # scheduled inside the part that is measured
        ("scheduled_s", pa.float64()),
        ("sent_s", pa.float64()),
        ("first_token_s", pa.float64()),
        ("ended_s", pa.float64()),
        ("kind", pa.string()),  # ok, unfinished, or the kind of failure
        ("prompt_tokens", pa.int64()),  # as the server counts them
        ("output_tokens", pa.int64()),
        ("chunks_s", pa.list_(pa.float64())),  # when each piece of text came
    ]
)


class LoadFiles:
    """The folder of one load test. Raises ConfigError where nothing can be written."""

    def __init__(self, output: str, name: str) -> None:
        self._store = _free_folder(output, name)
        probe(self._store)
        self._rows = 0

    @property
    def url(self) -> str:
        return self._store.url

    def add(self, point: Point, requests: Sequence[Request]) -> None:
        """Write the requests of one row."""
        buffer = io.BytesIO()
        pq.write_table(to_table(point, requests), buffer, compression="zstd", write_page_checksum=True)
        self._store.put(f"requests/{self._rows:03d}.parquet", buffer.getvalue())
        self._rows += 1

    def finish(self, body: Mapping[str, Any], page: str) -> None:
        """Write the result, and the page for people."""
        self._store.put(RESULT, orjson.dumps(body, option=orjson.OPT_INDENT_2))
        self._store.put(PAGE, page.encode())


def to_table(point: Point, requests: Sequence[Request]) -> pa.Table:
    window = point.measures.window
    return pa.Table.from_pylist(
        [
            {
                "loop": point.probe.loop,
                "level": point.probe.level,
                "in_window": window.holds(request.scheduled_at),
                "scheduled_s": request.scheduled_at,
                "sent_s": request.sent_at,
                "first_token_s": request.first_at,
                "ended_s": request.ended_at,
                "kind": request.kind,
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
                "chunks_s": list(request.chunks_at),
            }
            for request in requests
        ],
        schema=SCHEMA,
    )


def _free_folder(output: str, name: str) -> ObjectStore:
    """Return the first of name, name-2, name-3 .. that holds nothing: a measurement never replaces another."""
    number = 1
    while True:
        store = open_store(f"{output}/{name}" if number == 1 else f"{output}/{name}-{number}")
        if not store.list(RESULT) and not store.list("requests/"):
            return store
        number += 1
