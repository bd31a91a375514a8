"""A worker's process: rows are written without pandas, which stays there for others."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from evalpipe.runtime.lean import spare_pandas
spare_pandas()
import pyarrow as pa
pa.array([1.0, None])
assert "pandas" not in sys.modules, "pyarrow imported it all the same"
import pandas
"""


def test_rows_are_made_without_pandas():
    """In a fresh process: the first arrays do not import it, an import by name does."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
