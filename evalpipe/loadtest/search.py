"""Run a procedure (a generator that asks for probes) against whatever runs probes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from evalpipe.loadtest.probe import Point, Probe

T = TypeVar("T")


def carry_out(procedure: Generator[Probe, Point, T], run: Callable[[Probe], Point]) -> T:
    """Give the procedure each point it asks for; return what it comes to."""
    try:
        probe = next(procedure)
        while True:
            probe = procedure.send(run(probe))
    except StopIteration as stopped:
        result: T = stopped.value
        return result
