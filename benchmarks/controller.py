"""What one controller costs, and how fast it answers: a real Ray actor, and simulated workers that exchange with it.

    python benchmarks/controller.py [--workers 16 64 256] [--seconds 20] [--law gradient] [--rpm N]

The workers are coroutines of one process with the real WorkerLease. Each has requests of two seconds in flight, as many
as it is permitted, and tells of those that ended, as a worker of a run does; it asks again when its lease says so. CPU
is the actor's own process time over wall time, Ray's part of receiving and answering included. Target: below 0.20 of a
core with 256 workers (issue 4), whatever their number.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray

from evalpipe.config import ControlConfig
from evalpipe.control.lease import Lease, Permit, Report, WorkerLease
from evalpipe.control.observation import FirstTokens, Observation, Outcome, Sample
from evalpipe.control.quota import Quota
from evalpipe.runtime import fleet
from evalpipe.runtime.actors import ControllerActor
from evalpipe.runtime.controller import Predecessor

REQUEST_S, FIRST_TOKEN_S = 2.0, 0.2
PER_WORKER = 4  # permits on average: of 256 workers 1,024
WARM_S = 3.0  # until all workers hold a lease and exchange at their own pace
READ_S = 0.5  # the driver reads the records so often
Exchange = Callable[[Report], Awaitable[Lease]]


class MeteredController(ControllerActor):
    """The controller of a run, which also tells what it has used."""

    def cpu_s(self) -> float:
        return time.process_time()


@dataclass(slots=True)
class SimulatedWorker:
    """Sends what it may at each exchange and has it answered two seconds later."""

    name: str
    lease: WorkerLease = field(default_factory=WorkerLease)
    out: list[tuple[float, Permit]] = field(default_factory=list)
    answered: int = 0
    waits_s: list[float] = field(default_factory=list)

    async def work(self, exchange: Exchange, *, until: float, offset_s: float) -> None:
        await asyncio.sleep(offset_s)
        while (now := time.monotonic()) < until:
            report = self.report(now)
            lease = await exchange(report)
            self.waits_s.append(time.monotonic() - now)
            self.lease.renew(lease)
            while (permit := self.lease.take(now=time.monotonic())) is not None:
                self.out.append((time.monotonic(), permit))
            await asyncio.sleep(lease.next_exchange_s)

    def report(self, now: float) -> Report:
        done = [sent for sent in self.out if now - sent[0] >= REQUEST_S]
        self.out = self.out[len(done) :]
        for _ in done:
            self.lease.give_back()
        self.answered += len(done)
        want = 2 * PER_WORKER
        sequence, in_flight, peak, held = self.lease.ask(want=want, now=now)
        seen = replace(_observation(done), in_flight=in_flight, in_flight_peak=peak, output_tokens=90 * in_flight)
        return Report(self.name, 1, sequence, held, want, seen, sent=self.lease.sent)


def _observation(done: list[tuple[float, Permit]]) -> Observation:
    samples = tuple(
        Sample(
            Outcome.OK,
            REQUEST_S,
            ttft_s=FIRST_TOKEN_S,
            prompt_tokens=80,
            output_tokens=180,
            epoch=permit.epoch,
            limit=permit.limit,
            in_flight_at_send=permit.in_flight_at_send,
        )
        for _, permit in done
    )
    first_tokens = (FirstTokens(6, len(done), 0, FIRST_TOKEN_S),) if done else ()
    return Observation(prefill_tokens=80 * len(done), samples=samples, first_tokens=first_tokens)


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured with so many workers, over `seconds`."""

    workers: int
    seconds: float
    cpu_s: float
    exchanges: int
    answered: int
    waits_s: tuple[float, ...]

    def line(self) -> str:
        p50, p99 = np.quantile(self.waits_s, (0.5, 0.99)) * 1000
        return (
            f"{self.workers:7d} {self.exchanges / self.seconds:11.0f} {self.answered / self.seconds:9.0f}"
            f" {self.cpu_s / self.seconds:6.3f} {1000 * self.cpu_s / max(self.exchanges, 1):11.3f}"
            f" {p50:9.1f} {p99:9.1f}"
        )


HEADER = "workers exchanges/s answers/s   CPU  ms/exchange  wait p50  wait p99 ms"


async def measure(workers: int, *, seconds: float, law: str, quota: Quota) -> Row:
    """Run so many workers against one fresh controller and measure it once it is warm."""
    limit = PER_WORKER * workers
    config = ControlConfig(law=law, start=limit, max_limit=limit)
    actor = ray.remote(num_cpus=0)(MeteredController).remote(config, Predecessor(), quota=quota)
    await actor.cpu_s.remote()
    crowd = [SimulatedWorker(f"w{number}") for number in range(workers)]
    until = time.monotonic() + WARM_S + seconds

    async def exchange(report: Report) -> Lease:
        lease: Lease = await actor.exchange.remote(report)
        return lease

    tasks = [worker.work(exchange, until=until, offset_s=n / workers * 0.5) for n, worker in enumerate(crowd)]
    everything = asyncio.gather(*tasks, _read(actor, until))
    await asyncio.sleep(WARM_S)
    began, cpu_s, before = time.monotonic(), await actor.cpu_s.remote(), [len(worker.waits_s) for worker in crowd]
    answered = sum(worker.answered for worker in crowd)
    await everything
    waits = tuple(wait for worker, old in zip(crowd, before, strict=True) for wait in worker.waits_s[old:])
    used_s, elapsed_s = await actor.cpu_s.remote() - cpu_s, time.monotonic() - began
    ray.kill(actor)
    return Row(workers, elapsed_s, used_s, len(waits), sum(worker.answered for worker in crowd) - answered, waits)


async def _read(actor: Any, until: float) -> None:
    while time.monotonic() < until:
        await actor.read.remote()
        await asyncio.sleep(READ_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--law", default="gradient")
    parser.add_argument("--rpm", type=float, help="pace them by a quota, too")
    given = parser.parse_args()
    quota = Quota(rpm=given.rpm)
    fleet.connect(None)
    print(f"law {given.law}, {PER_WORKER} permits a worker, requests of {REQUEST_S:g} s, quota {given.rpm} rpm")
    print(HEADER)
    try:
        for workers in given.workers:
            print(asyncio.run(measure(workers, seconds=given.seconds, law=given.law, quota=quota)).line(), flush=True)
    finally:
        fleet.disconnect()


if __name__ == "__main__":
    main()
