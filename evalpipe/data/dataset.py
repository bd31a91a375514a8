"""Dataset: what a driver needs of the data, whatever it came from."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from evalpipe.config import DatasetConfig
from evalpipe.data.files import find_files, stem
from evalpipe.data.hub import SCHEME, read_hub
from evalpipe.data.order import Hashes, Indices, choose_order
from evalpipe.data.readers import Row, read_rows
from evalpipe.data.spool import Spool, write_spool
from evalpipe.errors import DataError
from evalpipe.records import Example

Where = Callable[[int, int], str]


class Dataset:
    """The selected items of a source, with random access. Made by `open_dataset`; close it, or use it in a `with`.

    item_index counts the selected items from 0 in source order (files sorted by path, rows in file order), whatever the
    shuffle. order: int64[n], the item indices in the order to run. fingerprint: hex sha256 over row, id and content of
    the selected items in source order. columns: names a template may use. name: short, fit for a folder.
    """

    def __init__(self, spool: Spool, *, order: Indices, name: str) -> None:
        self._rows = np.sort(order)
        self.order = np.searchsorted(self._rows, order)
        self.name = name
        self.columns = spool.columns
        self.fingerprint = _fingerprint(spool, self._rows)
        self._spool = spool
        self._is_open = True

    def __len__(self) -> int:
        return len(self.order)

    def example(self, item_index: int) -> Example:
        """Return one selected item. Raises IndexError outside them."""
        if not 0 <= item_index < len(self._rows):
            raise IndexError(f"item_index must be in [0, {len(self._rows)}), got {item_index}")
        return replace(self._spool.example(int(self._rows[item_index])), item_index=item_index)

    def close(self) -> None:
        """Let go of the scratch file; nothing can be read after it. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._spool.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_dataset(config: DatasetConfig, *, scratch: Path | None = None) -> Dataset:
    """Read the whole source once into a scratch file in the folder `scratch` (None: the system's) and open it.

    The file never has a name, so a driver that is killed, even while it reads, leaves nothing behind.
    Raises DataError, with the file and line where they are known, when the data cannot be used.
    """
    rows, where = _open_source(config)
    with tempfile.TemporaryFile(dir=scratch) as file:
        path = Path(f"/dev/fd/{file.fileno()}")
        index = write_spool(rows, path, config=config, where=where)
        spool = Spool(path, columns=index.columns)  # its mapping keeps the data
    id_hashes = np.frombuffer(index.id_hashes, dtype=np.uint64)
    _refuse_duplicates(spool, id_hashes, where)
    categories = np.frombuffer(index.categories, dtype=np.int32)
    order = choose_order(id_hashes, categories, limit=config.limit, shuffle=config.shuffle, seed=config.seed)
    return Dataset(spool, order=order, name=stem(config.path))


def _open_source(config: DatasetConfig) -> tuple[Iterator[Row], Where]:
    if config.path.startswith(SCHEME):
        numbered = read_hub(config.path, split=config.split)
        return (Row(values, 0, row) for row, values in numbered), lambda _, row: f"{config.path} row {row}"
    files = find_files(config.path)
    unit = "row" if files.kind == "parquet" else "element" if files.kind == "json" else "line"
    return read_rows(files), lambda file, line: f"{files.label(file)} {unit} {line}"


def _refuse_duplicates(spool: Spool, id_hashes: Hashes, where: Where) -> None:
    """Raise DataError for the first id that is there twice. Equal hashes of different ids are no duplicates."""
    by_hash = np.argsort(id_hashes, kind="stable")
    same = np.flatnonzero(id_hashes[by_hash[1:]] == id_hashes[by_hash[:-1]])
    pairs = zip(by_hash[same].tolist(), by_hash[same + 1].tolist(), strict=True)
    for one, two in sorted(pairs, key=lambda pair: pair[1]):
        item_id = spool.example(one).item_id
        if item_id == spool.example(two).item_id:
            places = " and ".join(where(*spool.origin(i)) for i in (one, two))
            raise DataError(
                f"duplicate id {item_id!r}: {places}; ids must be unique (dataset.id_column names the column)"
            )


def _fingerprint(spool: Spool, selected: Indices) -> str:
    digest = hashlib.sha256(selected.astype("<i8").tobytes())
    digest.update(spool.digests()[selected].tobytes())
    return digest.hexdigest()
