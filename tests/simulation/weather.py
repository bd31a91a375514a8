"""What may go wrong in one run, drawn from its seed before anything happens.

`Weather` is the steady part (how the network, the disk and the server behave); `Stroke`s are the blows, each at its
time or at its operating-system call.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from simulation.server import ServerSetup
from simulation.sim_os import DiskFaults

#: kind of blow -> how often it is drawn
STROKES = {
    "kill_driver": 5,
    "kill_worker": 4,
    "kill_controller": 2,
    "kill_node": 3,
    "power_cut": 5,
    "pause_driver": 2,
    "pause_worker": 2,
    "pause_controller": 2,
    "cut_off_worker": 2,
    "fill_disk": 2,
    "second_driver": 2,
    "takeover": 3,
    "stranger": 2,
}
LAWS = ("fixed", "aimd", "gradient")
FAILURES = ("server_error", "reset", "cut", "timeout", "bad_request")


@dataclass(frozen=True, slots=True)
class NetworkSetup:
    """delay_s: of one message, at most; slow_s: of a slow one. The rest are chances of one message."""

    delay_s: float = 0.005
    slow_s: float = 1.0
    slow: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0


@dataclass(frozen=True, slots=True)
class Stroke:
    """One blow. at_s: virtual seconds from the start of the run. at_call: instead, before this os call (from 1).

    seconds: how long a pause, a cut or a full disk lasts. pick: whom it meets, in [0, 1).
    """

    kind: str
    at_s: float | None = None
    at_call: int | None = None
    seconds: float = 0.0
    pick: float = 0.0


@dataclass(frozen=True, slots=True)
class Weather:
    """yields: chance of an os call to let others go on first. lingers: that a dead driver's worker lives on, cut off.

    moves: each driver is started on another host than the one before it.
    """

    items: int = 40
    workers: int = 2
    law: str = "fixed"
    limit: int = 4
    network: NetworkSetup = field(default_factory=NetworkSetup)
    disk: DiskFaults = field(default_factory=DiskFaults)
    server: ServerSetup = field(default_factory=ServerSetup)
    strokes: tuple[Stroke, ...] = ()
    yields: float = 0.0
    lingers: float = 0.0
    moves: bool = False


def draw(seed: int) -> Weather:
    """Draw the weather of one seed."""
    rng = random.Random(f"weather/{seed}")
    lingers = rng.choice((0.0, 0.0, 0.5))
    return Weather(
        items=rng.randint(24, 48),
        workers=rng.choice((2, 2, 3)),
        law=rng.choice(LAWS),
        limit=rng.randint(3, 8),
        network=_network(rng),
        disk=_disk(rng),
        server=_server(rng),
        strokes=tuple(_stroke(rng) for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))),
        yields=rng.choice((0.0, 0.05, 0.2)),
        lingers=lingers,
        moves=lingers > 0 or rng.random() < 0.5,  # who finds a pid gone trusts that its workers are
    )


def calm(*, items: int, strokes: tuple[Stroke, ...]) -> Weather:
    """Return a run in which nothing happens but the given blows; for the sweep over every os call."""
    return replace(Weather(), items=items, workers=2, limit=8, strokes=strokes)


def _network(rng: random.Random) -> NetworkSetup:
    def chance(most: float) -> float:
        return rng.choice((0.0, 0.0, most))

    return NetworkSetup(slow=chance(0.05), lost=chance(0.003), doubled=chance(0.1))


def _disk(rng: random.Random) -> DiskFaults:
    def chance(most: float) -> float:
        return rng.choice((0.0, 0.0, most))

    return DiskFaults(
        short_write=chance(0.3), failed_sync=chance(0.02), stale_list=chance(0.3), stale_s=rng.uniform(0.5, 5.0)
    )


def _server(rng: random.Random) -> ServerSetup:
    is_bad = rng.random() < 0.4
    failures = {kind: rng.uniform(0.0, 0.06) for kind in FAILURES} if is_bad else {}
    return ServerSetup(
        latency_s=rng.choice((0.2, 0.4, 0.8, 2.5)), capacity=rng.choice((100, 100, 6, 3)), failures=failures
    )


def _stroke(rng: random.Random) -> Stroke:
    kind = rng.choices(list(STROKES), weights=list(STROKES.values()))[0]
    is_by_call = rng.random() < 0.5
    return Stroke(
        kind,
        at_s=None if is_by_call else rng.uniform(0.2, 14.0),
        at_call=rng.randint(1, 400) if is_by_call else None,
        seconds=rng.uniform(20.0, 40.0) if kind.startswith("pause") else rng.uniform(2.0, 25.0),
        pick=rng.random(),
    )
