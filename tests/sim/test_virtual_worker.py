"""A virtual worker sees what an HTTP client sees: chunks, some ms late, and of a sample only what is streamed."""

from __future__ import annotations

import math

import pytest

from evalpipe.control.lease import Lease
from evalpipe.control.observation import Observation
from evalpipe.sim.engine import Job
from evalpipe.sim.virtual_worker import CHUNK_S, Sent, VirtualWorker

RATE = 1_000.0  # tokens/s of each stream


class Desk:
    """A worker with permits, and a server that makes RATE tokens/s for each stream from its first token on."""

    def __init__(self, *, is_sampling: bool = False) -> None:
        self.worker = VirtualWorker("w0", is_sampling=is_sampling)
        self.worker.renew(Lease(permits=500, epoch=0, limit=500, ttl_s=1e9, next_exchange_s=0.1))
        self.begun_at: dict[int, float] = {}

    def send(self, job_id: int, *, at: float) -> Sent:
        permit = self.worker.lease.take(now=at)
        assert permit is not None
        sent = Sent(Job(job_id, 100, 10_000), self.worker, permit, at)
        self.worker.on_sent(sent)
        return sent

    def begin(self, job_id: int, *, at: float) -> Sent:
        sent = self.send(job_id, at=at)
        self.begun_at[job_id] = at
        self.worker.on_first_token(sent, at)
        return sent

    def report(self, now: float) -> Observation:
        def made(job_id: int) -> int:
            return math.ceil((now - self.begun_at[job_id]) * RATE)

        return self.worker.report(want=0, tokens_of=made, now=now).observation


def test_no_more_is_seen_than_whole_chunks_hold():
    """After a second it has at most what left the server by then, and at least what left two chunks before."""
    desk = Desk()
    desk.begin(1, at=0.0)

    seen = sum(desk.report(step * 0.1).output_tokens for step in range(1, 11))

    assert RATE * (1.0 - 2 * CHUNK_S) <= seen <= RATE


def test_tokens_are_as_uneven_as_over_http():
    """Ticks of 64 streams scatter by 0.05 to 0.15 of what they should be, as measured; a minute of them is exact."""
    desk = Desk()
    for job_id in range(64):
        desk.begin(job_id, at=job_id / 640)
    desk.report(0.2)

    ticks = [desk.report(0.2 + step * 0.1).output_tokens / (64 * 0.1 * RATE) for step in range(1, 601)]

    mean = sum(ticks) / len(ticks)
    assert mean == pytest.approx(1.0, abs=0.01)
    assert 0.05 <= math.sqrt(sum((tick - mean) ** 2 for tick in ticks) / len(ticks)) <= 0.15


def test_the_last_chunk_brings_the_rest():
    """When an answer is there, all of it was told, and once."""
    desk = Desk()
    sent = desk.begin(1, at=0.0)
    told = desk.report(0.5).output_tokens

    desk.worker.on_ended(sent, sent.sample(1.0))

    assert told + desk.report(1.1).output_tokens == sent.job.output_tokens


def test_of_a_sample_the_rest_is_unseen():
    """Above sixteen in flight about a tenth is streamed; the others show no first token, though one came."""
    desk = Desk(is_sampling=True)
    sent = [desk.begin(job_id, at=0.0) for job_id in range(216)]

    seen = desk.report(0.1)

    streamed = sum(each.stream.is_streamed for each in sent)
    assert streamed == pytest.approx(16 + 20, abs=12)
    assert (seen.unseen, seen.in_flight, seen.waiting) == (216 - streamed, 216, 0)
    assert sum(first.count for first in seen.first_tokens) == streamed
    assert all(each.first_at == 0.0 for each in sent)
