"""Time as a process of the runtime sees it. One value, so that a simulation can stand in for all of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """now: seconds, monotonic, this process. wall: seconds since the Unix epoch, for people. sleep: wait so long."""

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


REAL = Clock()
