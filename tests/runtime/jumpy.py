"""An asyncio loop in virtual time: where nothing is ready, the clock jumps to what is due next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self._jump(timeout)
        return ready


class JumpyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 1_000.0
        super().__init__(_Jumping(self._on_jump))

    def time(self) -> float:
        return self._now

    def _on_jump(self, seconds: float) -> None:
        self._now += max(seconds, 0.0) + 1e-9  # a timer is due a little after its instant, as on a real clock


def run_virtual(make: Callable[[Callable[[], float]], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that `make` builds from a clock (seconds) until it is done; no time passes outside."""
    with asyncio.Runner(loop_factory=JumpyLoop) as runner:
        return runner.run(make(runner.get_loop().time))
