"""From files to rows: one generator a format, none of which holds more than a block in memory.

A row is a plain dict of JSON-like values and where it came from. CSV cells stay text: "007" is an id, not a number.
Lines of an OpenAI batch file get a column `messages` out of their body.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from evalpipe.data.files import Files, one_line
from evalpipe.errors import DataError

BLOCK_ROWS = 1024
MAX_LINE_BYTES = 64 * 2**20  # a longer "line" is a file of another format
MAX_ARRAY_BYTES = 256 * 2**20  # a .json array cannot be streamed: it is held in memory once
READ_BYTES = 2**20


class Row(NamedTuple):
    """One row. file: index into Files.paths; line: of a text file, else the row number; counted from 1."""

    values: dict[str, Any]
    file: int
    line: int


Numbered = Iterator[tuple[int, dict[str, Any]]]


def read_rows(files: Files) -> Iterator[Row]:
    """Yield every row of every file in order. Raises DataError with the file, and the line where it is known."""
    read = _READERS[files.kind]
    for index, path in enumerate(files.paths):
        try:
            with (
                files.filesystem.open_input_file(path) if files.kind == "parquet" else _open_text(files, path) as stream
            ):
                for line, values in read(stream, files.label(index)):
                    yield Row(values, index, line)
        except (OSError, EOFError, UnicodeError, csv.Error, pa.ArrowException) as error:
            raise DataError(f"cannot read {files.label(index)}: {one_line(error)}") from error


def _open_text(files: Files, path: str) -> io.BufferedReader:
    return io.BufferedReader(files.filesystem.open_input_stream(path), READ_BYTES)


def _read_parquet(stream: Any, label: str) -> Numbered:
    # buffer_size streams the pages of a row group instead of fetching it whole; checksums are checked only when asked
    with pq.ParquetFile(stream, page_checksum_verification=True, buffer_size=READ_BYTES) as file:
        _refuse_twins(file.schema_arrow.names, label)
        row = 0
        for batch in file.iter_batches(batch_size=BLOCK_ROWS):
            for values in batch.to_pylist():
                row += 1
                yield row, values


def _read_csv(stream: io.BufferedReader, label: str) -> Numbered:
    csv.field_size_limit(MAX_LINE_BYTES)  # the default of 128 KiB is shorter than a long prompt
    # strict: an unclosed quote would else swallow the rest of the file as one cell
    reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), strict=True)
    names = next(reader, [])
    _refuse_twins(names, label)
    while True:
        line = reader.line_num + 1
        cells = next(reader, None)
        if cells is None:
            return
        if cells and len(cells) != len(names):
            raise DataError(f"{label} line {line}: {len(cells)} cells under {len(names)} column names")
        if cells:
            yield line, dict(zip(names, cells, strict=True))


def _read_jsonl(stream: io.BufferedReader, label: str) -> Numbered:
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{label} line {number} is longer than {MAX_LINE_BYTES // 2**20} MiB; is it JSON lines?")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, _object(_parse(line, f"{label} line {number}"), f"{label} line {number}")


def _read_json(stream: io.BufferedReader, label: str) -> Numbered:
    """Read a file that holds an array of objects, or JSON lines under another name."""
    if not stream.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from _read_jsonl(stream, label)
        return
    text = stream.read(MAX_ARRAY_BYTES + 1)
    if len(text) > MAX_ARRAY_BYTES:
        raise DataError(f"{label} is an array of more than {MAX_ARRAY_BYTES // 2**20} MiB; write it as JSON lines")
    for number, value in enumerate(_parse(text.removeprefix(b"\xef\xbb\xbf"), label), start=1):
        yield number, _object(value, f"{label} element {number}")


# Python's decoder, not a faster one: integers of any size stay exact. NaN and Infinity, which JSON lacks, become null.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


def _parse(text: bytes, where: str) -> Any:
    try:
        return _DECODER.decode(text.decode())
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {one_line(error)}") from None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f'{where} must hold an object like {{"question": ..}}, got a {type(value).__name__}')
    return _unpack_batch(value, where) if {"custom_id", "url", "body"} <= value.keys() else value


def _unpack_batch(line: dict[str, Any], where: str) -> dict[str, Any]:
    """Lift the messages out of a line of an OpenAI batch file; its other parameters stay in `body`, unused."""
    body = line["body"]
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise DataError(f"{where}: only batch lines for /v1/chat/completions can be run, got url {line['url']!r}")
    rest = {name: value for name, value in body.items() if name != "messages"}
    return {**line, "body": rest, "messages": body["messages"]}


def _refuse_twins(names: list[str], label: str) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise DataError(f"{label} has two columns named {twins[0]!r}; rename one")


_READERS: dict[str, Callable[[Any, str], Numbered]] = {
    "parquet": _read_parquet,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "json": _read_json,
}
