"""Looking for a marked key in everything that a run leaves behind. Not a test module."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq


def files_with(folder: Path, secret: str) -> list[str]:
    """Return the files below a folder that hold the secret: as bytes, or in a Parquet column or its metadata."""
    return sorted(str(path) for path in files_below(folder) if secret.encode() in content(path))


def files_below(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def content(path: Path) -> bytes:
    """Return what a reader of the file would see: Parquet decoded, gzip unpacked, else its bytes."""
    try:
        data = path.read_bytes()
    except OSError:  # a log that its owner rotated away meanwhile
        return b""
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        return data + repr(file.schema_arrow.metadata).encode() + repr(file.read().to_pylist()).encode()
    return data + gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
