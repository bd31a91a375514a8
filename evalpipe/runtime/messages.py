"""What driver, workers and controller say to each other. Plain values: no exception, key or client object crosses.

The driver is the only caller. A poll may be repeated: shards are known by id, what a worker reports stays in its
replies until the driver has acknowledged it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evalpipe.config import Config
from evalpipe.errors import Failure
from evalpipe.records import Key, Shard
from evalpipe.runtime.controller import ControlRecords
from evalpipe.store.segments import SegmentInfo


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All a worker needs to start. incarnation: counts the processes that had this name, from 1.

    writer_epoch, spec_sha256: of the run's log, stamped on every row and segment. cap: most requests it may ever have
    in flight (size of its connection pool). needs_key: the driver has an API key, so the worker must have one too; the
    key itself never travels.
    """

    name: str
    incarnation: int
    run_name: str
    config: Config
    base_url: str
    model: str
    store_url: str
    writer: str
    writer_epoch: int
    spec_sha256: str
    cap: int
    needs_key: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """One file that a worker put into the store; number counts its reports from 1."""

    number: int
    info: SegmentInfo


@dataclass(frozen=True, slots=True)
class Poll:
    """assign: new shards. acked: the last report number that is in the log. drain: send nothing more."""

    assign: Sequence[Shard] = ()
    acked: int = 0
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of one worker process since it started; the driver adds them up for the panel only."""

    finished: int = 0
    answered: int = 0
    correct: int = 0
    scored: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PollReply:
    """wants: items it could use now. queued: items not sent yet, waiting retries included. unwritten: rows in memory.

    cpu_share: of one core since the last poll. lag_s: worst lateness of the event loop since then.
    fatal: why the whole run cannot go on.
    """

    written: Sequence[Written] = ()
    wants: int = 0
    queued: int = 0
    in_flight: int = 0
    unwritten: int = 0
    counters: Counters = field(default_factory=Counters)
    cpu_share: float = 0.0
    lag_s: float = 0.0
    cpu_s: float = 0.0
    rtt_s: Sequence[float] = ()  # of answers since the last poll, for the panel's quantiles
    last_failure: Failure | None = None
    fatal: Failure | None = None
    is_lost: bool = False  # its lease ran out: it sends nothing more
    released: Sequence[Key] = ()  # items it will not do
    signs_of_life: int = 0  # tokens and answers so far
    storage: str = ""  # why its writes fail now; it sends nothing meanwhile
    is_drained: bool = False  # it was told to drain, has nothing in flight, and every row is in a file


@dataclass(frozen=True, slots=True)
class Replied:
    """A worker answered its poll."""

    worker: str
    reply: PollReply


@dataclass(frozen=True, slots=True)
class Died:
    """A worker is gone; reason is for the log. is_sure: its process is dead, not only out of reach."""

    worker: str
    reason: str
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class Recorded:
    """The controller told what it did."""

    records: ControlRecords


Event = Replied | Died | Recorded


class Fleet(Protocol):
    """Controller and workers of one run, as the driver sees them; runtime.fleet.RayFleet is the real one."""

    @property
    def workers(self) -> Collection[str]:
        """Names of the workers that were spawned and not buried."""

    def spawn(self, spec: WorkerSpec) -> None:
        """Start a worker process; it answers its first poll when it is up."""

    def can_poll(self, worker: str) -> bool:
        """Say whether the worker lives and has no poll out."""

    def poll(self, worker: str, poll: Poll) -> None: ...

    def ask_control(self) -> None:
        """Ask the controller for its records, unless it was asked and has not answered."""

    def collect(self, *, timeout_s: float) -> Sequence[Event]:
        """Wait until something came in, at most timeout_s; return all that did. Raises Resumable."""

    def bury(self, worker: str, *, is_sure: bool) -> None:
        """Make sure a dead worker is dead. Its permits are free at once if that is sure, else after its TTL."""

    def stop(self) -> None:
        """End all actors at once."""
