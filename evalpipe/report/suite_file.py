"""The suite's rows as a Parquet file: one row a law, case and seed."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evalpipe.sim.row import Row
from evalpipe.sim.suite import SuiteTable

_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "tuple[str, ...]": pa.list_(pa.string())}
#: columns and their meaning: evalpipe/sim/row.py; NaN where a figure has none on the case
SCHEMA = pa.schema([(field.name, _TYPES[str(field.type)]) for field in fields(Row)])


def write_rows(table: SuiteTable, path: Path) -> None:
    """Write the file. Raises OSError where it cannot be written."""
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in table.rows], schema=SCHEMA), path)
