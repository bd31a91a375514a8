"""`evalpipe run --capacity FILE`: what a load test promised, as bounds of the one limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evalpipe.errors import ConfigError

WARM_SHARE = 0.6  # of the cap: another tenant may be there now, and a law grows in seconds


def capacity_flags(path: Path) -> dict[str, Any]:
    """Return the settings: the recommended requests in flight are the upper bound, 0.6 of them the start.

    path: result.json of `evalpipe loadtest capacity`, or its folder. Raises ConfigError for another file, and for a
    capacity that no open loop confirmed: that is a measurement, not a promise.
    """
    path = path / "result.json" if path.is_dir() else path
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        most, is_confirmed = int(body["recommended"]["max_in_flight"]), bool(body["is_confirmed"])
    except FileNotFoundError:
        raise ConfigError(f"--capacity: no such file: {path}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"--capacity takes result.json of `evalpipe loadtest capacity`, got {path}") from None
    if not is_confirmed:
        raise ConfigError(f"--capacity: {path} is not confirmed; run `evalpipe loadtest capacity` without --quick")
    return {"control.max_limit": most, "control.start": max(round(WARM_SHARE * most), 1)}
