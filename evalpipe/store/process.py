"""Which process of which host wrote something, and whether it still lives."""

from __future__ import annotations

import os


def is_process(pid: int) -> bool:
    """Say whether a process of this host has the number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # someone else's
    return True
