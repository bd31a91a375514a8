"""evalpipe: batch evaluation of OpenAI-compatible LLM servers on Ray, under one limit that latency drives.

The public names are imported when they are used: `import evalpipe` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalpipe.api import Run, open_run, run
    from evalpipe.config import Config, load_config
    from evalpipe.control.build import build_law
    from evalpipe.limiter import Limiter

__version__ = "0.1.0"

_HOMES = {
    "Config": "evalpipe.config",
    "Limiter": "evalpipe.limiter",
    "Run": "evalpipe.api",
    "build_law": "evalpipe.control.build",
    "load_config": "evalpipe.config",
    "open_run": "evalpipe.api",
    "run": "evalpipe.api",
}

__all__ = ["Config", "Limiter", "Run", "build_law", "load_config", "open_run", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evalpipe' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
