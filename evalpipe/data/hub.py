"""The only door to the `datasets` library: `hf://owner/name[/subset][:split]`, imported late (it takes seconds).

Its cache is left on, so that a resumed run needs no network. Arrow values are taken as stored: images stay bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from evalpipe.data.files import one_line
from evalpipe.data.readers import BLOCK_ROWS
from evalpipe.errors import DataError

SCHEME = "hf://"
PATTERN = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<subset>[\w.-]+))?(?::(?P<split>[^/:]+))?")


def read_hub(path: str, *, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row number from 1, row) of a hub dataset. split: used where the path names none.

    Raises DataError when it cannot be loaded: no network and not in the cache, no such name, subset or split.
    """
    match = PATTERN.fullmatch(path)
    if match is None:
        raise DataError(f"cannot read {path!r}; give hf://owner/name, hf://owner/name/subset or hf://owner/name:split")
    table = _load(match["name"], subset=match["subset"], split=match["split"] or split)
    row = 0
    for block in table.with_format("arrow").iter(batch_size=BLOCK_ROWS):
        for values in block.to_pylist():
            row += 1
            yield row, values


def _load(name: str, *, subset: str | None, split: str) -> Any:
    """Call `datasets.load_dataset`; its own types are no use to mypy, so nothing of it leaves this module."""
    try:
        import datasets

        datasets.disable_progress_bars()  # only the CLI prints
        return datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the library documents no root class, and passes on those of four others
        where = f"hf://{name}{'/' + subset if subset else ''}:{split}"
        hint = "check name, subset and split, or download the files and give their folder"
        raise DataError(f"cannot load {where}: {type(error).__name__}: {one_line(error)}; {hint}") from error


def from_table(table: pa.Table) -> Any:
    """Return an Arrow table as a `datasets.Dataset`, without copying it."""
    import datasets

    return datasets.Dataset(table)
