"""What a worker process does without, so that it starts sooner and is not held up while it times requests."""

from __future__ import annotations

import gc
import sys

import pyarrow as pa


def calm_gc() -> None:
    """Keep the collector off what was imported (some 500,000 objects) and let it run less often.

    With Python's defaults it takes 0.16 of 0.85 ms an item (2026-11, benchmarks/overhead.py, no delay in the server).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class _NoPandas:
    """An importer that has no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def spare_pandas() -> None:
    """Let pyarrow do without pandas in this process: with the first rows it would import it, 1.3 s of CPU.

    pyarrow looks once, whether there is one, when it is first given a list; users' scorers find pandas as before.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
