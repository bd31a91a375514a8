"""The columns of stored rows: one Arrow schema a kind of file, same names and order as the dataclass in records.py.

A later version may only add nullable columns; readers fill them with nulls in older files (`conform`).
"""

from __future__ import annotations

import pyarrow as pa

from evalpipe.errors import StateError

SCHEMA_VERSION = 1
VERSION_KEY = b"evalpipe.schema"
SPEC_KEY = b"evalpipe.spec"  # sha256 of the spec of the run that the rows belong to

_UTC = pa.timestamp("us", tz="UTC")


def _required(name: str, dtype: pa.DataType) -> pa.Field:
    return pa.field(name, dtype, nullable=False)


RESULT_SCHEMA = pa.schema(
    [
        _required("item_id", pa.string()),  # the dataset's own name of the item
        _required("item_index", pa.int64()),  # dense from 0, the item's part of the key
        _required("repeat", pa.int32()),  # from 0
        _required("generation", pa.int32()),  # from 0; a new one for each re-run of failed items
        _required("status", pa.string()),  # records.Status
        _required("category", pa.string()),  # "" where the dataset has none
        pa.field("expected", pa.string()),  # null: no reference answer
        pa.field("prompt", pa.string()),  # null: store_prompts is false
        pa.field("response", pa.string()),  # null: failed
        pa.field("reasoning", pa.string()),  # the model's reasoning where the server sends it apart
        pa.field("finish_reason", pa.string()),  # stop, length, content_filter, ..; null: failed
        pa.field("prompt_tokens", pa.int64()),  # null: unknown
        pa.field("output_tokens", pa.int64()),  # null: unknown
        pa.field("cached_tokens", pa.int64()),  # of the prompt, served from the prefix cache
        pa.field("usage_source", pa.string()),  # server, none
        pa.field("ttft_s", pa.float64()),  # first token - sent; null: not streamed
        pa.field("rtt_s", pa.float64()),  # last byte - sent, of the attempt that decided
        pa.field("tpot_s", pa.float64()),  # (rtt - ttft) / (output tokens - 1)
        _required("wait_s", pa.float64()),  # waiting for a permit
        _required("attempts", pa.int32()),  # sent, the last one included
        _required("retry_wait_s", pa.float64()),  # backing off between attempts
        pa.field("in_flight_at_send", pa.int32()),  # cluster-wide, itself included
        pa.field("limit_at_send", pa.int32()),  # limit of the permit
        pa.field("sent_at", _UTC),  # wall clock, for people; decides nothing
        _required("endpoint", pa.string()),  # base URL that answered
        _required("model", pa.string()),  # as the server names it
        pa.field("request_id", pa.string()),  # the server's, to find it in its logs
        pa.field("score", pa.float64()),  # in [0, 1]; null: failed or nothing to compare with
        pa.field("correct", pa.bool_()),  # verdict; null as score
        pa.field("extracted", pa.string()),  # the final answer that was compared
        pa.field("error_kind", pa.string()),  # row of endpoint/failures.py, or scorer (answered, no score); else null
        pa.field("error_code", pa.string()),  # HTTP status or the provider's code
        pa.field("error_message", pa.string()),  # redacted
        _required("prompt_sha256", pa.string()),  # hex, of the messages sent
        _required("worker", pa.string()),  # who sent it
        _required("writer_epoch", pa.int64()),  # the driver's generation
        pa.field("permit_epoch", pa.int64()),  # cuts of the limit before its permit
        _required("metadata", pa.string()),  # the dataset's further columns, JSON text
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION)},
)

ATTEMPT_SCHEMA = pa.schema(
    [
        _required("item_index", pa.int64()),  # with repeat and generation: the key
        _required("repeat", pa.int32()),
        _required("generation", pa.int32()),
        _required("attempt", pa.int32()),  # from 1
        _required("kind", pa.string()),  # ok or a row of endpoint/failures.py
        _required("code", pa.string()),  # HTTP status or the provider's code, "" if none
        _required("message", pa.string()),  # redacted
        _required("sent_at", _UTC),  # wall clock, for people
        _required("rtt_s", pa.float64()),  # on the wire
        pa.field("ttft_s", pa.float64()),  # null: not streamed or no token came
        _required("output_tokens", pa.int64()),
        pa.field("retry_after_s", pa.float64()),  # what the server asked for; null: nothing
        _required("in_flight_at_send", pa.int32()),
        _required("limit_at_send", pa.int32()),
        _required("permit_epoch", pa.int64()),
        _required("worker", pa.string()),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION)},
)


def stamp(schema: pa.Schema, *, spec_sha256: str) -> pa.Schema:
    """Return the schema as it goes into a file: with the version of its columns and the run's spec."""
    return schema.with_metadata({**(schema.metadata or {}), SPEC_KEY: spec_sha256})


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give an older table today's columns, in order; new ones are null.

    Raises StateError when a required column is missing, one has another type, or one is not known (a later version).
    """
    unknown = set(table.column_names) - set(schema.names)
    if unknown:
        raise StateError(f"unknown columns {sorted(unknown)}: the file is of a later version; upgrade evalpipe")
    try:
        columns = [
            table[field.name].cast(field.type) if field.name in table.column_names else _nulls(field, table.num_rows)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)
    except pa.ArrowException as error:
        raise StateError(f"columns do not fit the schema: {error}") from error


def _nulls(field: pa.Field, rows: int) -> pa.Array:
    if not field.nullable:
        raise StateError(f"column {field.name} is missing")
    return pa.nulls(rows, field.type)
