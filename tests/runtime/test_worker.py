"""The worker's loop without Ray and without a network: what is sent, what is kept, what is handed back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from evalpipe.config import parse_config
from evalpipe.control.build import build_law
from evalpipe.control.core import ControlCore
from evalpipe.control.lease import Lease, Report
from evalpipe.endpoint.failures import make
from evalpipe.errors import EndpointError
from evalpipe.records import Completion, Example, Key, Request, Shard, Status, WorkItem
from evalpipe.runtime.messages import Poll, PollReply, WorkerSpec
from evalpipe.runtime.worker import Exchange, WorkerLoop
from evalpipe.store.local import LocalStore
from evalpipe.store.segments import read_segment

PATIENCE_S = 5.0  # of a test that would otherwise hang
STOP_S = 0.05  # a stop that takes longer never ends
#: Seeds the jitter of retries. With this nonce the first six draws happen to be small, so no test waits long.
WRITER = "0000000000000000000000000000a13f"


class ScriptedSender:
    """Answers by item: the next error of its script is raised, then every send is answered "Answer: yes"."""

    def __init__(self, script: Mapping[str, list[EndpointError]]) -> None:
        self.script, self.sent, self.in_flight, self.peak = script, [], 0, 0
        self.deadlines = defaultdict[str, list[float]](list)
        self.open = asyncio.Event()
        self.arrived = asyncio.Condition()

    async def send(self, request: Request, *, trace=None, deadline_s: float, progress=None) -> Completion:
        self.sent.append(request.item_id)
        self.deadlines[request.item_id].append(deadline_s)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await self.open.wait()
            if errors := self.script.get(request.item_id):
                raise errors.pop(0)
            return Completion("Answer: yes", "stop", Status.OK, 0.1, 0.05, 0.01, 10, 5, usage_source="server")
        finally:
            self.in_flight -= 1

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.arrived:
            await self.arrived.wait_for(lambda: len(self.sent) >= count)

    async def aclose(self) -> None:
        self.open.set()


class Controller:
    """The real control core behind an instant call; `turn` wakes whoever waits for the next exchange."""

    def __init__(self, limit: int, *, law: str = "fixed") -> None:
        self.core = ControlCore(build_law(law, start=limit), exchange_s=0.005)
        self._turns = asyncio.Condition()

    async def exchange(self, report: Report) -> Lease:
        async with self._turns:
            self._turns.notify_all()
        return self.core.exchange(report, now=time.monotonic())

    async def turn(self) -> None:
        async with asyncio.timeout(PATIENCE_S), self._turns:
            await self._turns.wait()


class SlowController:
    """A controller that answers an exchange only when the test says so."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[tuple[Report, asyncio.Future[Lease]]] = asyncio.Queue()

    async def exchange(self, report: Report) -> Lease:
        answer: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        await self._asked.put((report, answer))
        return await answer

    async def asked(self) -> tuple[Report, Callable[[int], None]]:
        """Wait for the next exchange; returns its report and how to answer it with so many permits."""
        report, future = await asyncio.wait_for(self._asked.get(), PATIENCE_S)
        return report, lambda permits: future.set_result(Lease(permits, 0, permits, ttl_s=15.0, next_exchange_s=0.001))


class Desk:
    """The driver's side of one worker, and what it has got from it."""

    def __init__(self, loop: WorkerLoop, controller: Controller, store: LocalStore) -> None:
        self.loop, self.controller, self.store = loop, controller, store

    async def poll_until(self, is_done: Callable[[PollReply], bool], **poll: Any) -> PollReply:
        while not is_done(reply := await self.loop.poll(Poll(**poll))):
            await self.controller.turn()
        return reply

    async def finish(self, count: int) -> list[dict[str, Any]]:
        """Poll until so many rows are durable; returns them by item."""
        reply = await self.poll_until(lambda reply: reply.counters.finished >= count and reply.unwritten == 0)
        return self.rows(reply)

    def rows(self, reply: PollReply, kind: str = "results") -> list[dict[str, Any]]:
        tables = [read_segment(self.store, written.info) for written in reply.written if written.info.kind == kind]
        rows = [row for table in tables for row in table.to_pylist()]
        return sorted(rows, key=lambda row: row["item_index"])


def item(index: int, *, expected: str | None = "yes", **fields: Any) -> WorkItem:
    example = Example(index, f"i{index}", "", expected, {"question": f"Is it {index}?"} | fields)
    return WorkItem(example)


def items(count: int) -> list[WorkItem]:
    return [item(index) for index in range(count)]


@contextlib.asynccontextmanager
async def working(
    folder: Path,
    exchange: Exchange,
    sender: ScriptedSender,
    *,
    work: list[WorkItem],
    scorer: str = "exact",
    max_attempts: int = 2,
) -> AsyncIterator[WorkerLoop]:
    """A started loop with `work` in hand."""
    config = parse_config(
        {"run": {"flush_s": 0.01}, "endpoint": {"max_attempts": max_attempts}, "scorer": {"name": scorer}}
    )
    spec = WorkerSpec(
        name="w0",
        incarnation=1,
        run_name="r",
        config=config,
        base_url="http://127.0.0.1:1/v1",
        model="m",
        store_url=str(folder),
        writer=WRITER,
        writer_epoch=3,
        spec_sha256="f" * 64,
        cap=8,
    )
    loop = WorkerLoop(spec, exchange, sender=sender)
    loop.start()
    await loop.poll(Poll([Shard(1, work)]))
    try:
        yield loop
    finally:
        await stop(loop)


async def stop(loop: WorkerLoop) -> None:
    """Stop it, however many cancels that takes: test_stop_right_after_a_poll_ends says why."""
    stopping = asyncio.create_task(loop.stop())
    while not stopping.done():
        await asyncio.wait({stopping}, timeout=STOP_S)
        stopping.cancel()


def run(
    folder: Path,
    scenario: Callable[[Desk, ScriptedSender], Coroutine[Any, Any, None]],
    *,
    script: Mapping[str, list[EndpointError]] | None = None,
    limit: int = 4,
    is_open: bool = True,
    **options: Any,
) -> None:
    """Run a scenario with a worker, its sender and a real controller of a fixed limit."""

    async def main() -> None:
        sender, controller = ScriptedSender(script or {}), Controller(limit)
        if is_open:
            sender.open.set()
        async with working(folder, controller.exchange, sender, **options) as loop:
            await scenario(Desk(loop, controller, LocalStore(folder)), sender)

    asyncio.run(main())


def test_every_item_gets_one_row(tmp_path: Path):
    """Twenty items, twenty rows, each with its answer, its score and who wrote it; and one attempt each."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        rows = await desk.finish(20)
        reply = await desk.poll_until(lambda reply: reply.unwritten == 0, drain=True)

        assert [row["item_index"] for row in rows] == list(range(20))
        assert {(row["status"], row["response"], row["score"], row["attempts"]) for row in rows} == {
            ("ok", "Answer: yes", 1.0, 1)
        }
        assert {(row["worker"], row["writer_epoch"], row["limit_at_send"]) for row in rows} == {("w0.1", 3, 4)}
        attempts = desk.rows(reply, "attempts")
        assert [(row["item_index"], row["attempt"], row["kind"]) for row in attempts] == [
            (n, 1, "ok") for n in range(20)
        ]
        assert (reply.counters.answered, reply.counters.correct, reply.counters.scored) == (20, 20, 20)

    run(tmp_path, scenario, work=items(20))


def test_never_more_in_flight_than_permits(tmp_path: Path):
    """With three permits the fourth item waits, however many there are."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        await sender.until_sent(3)
        for _ in range(3):
            await desk.controller.turn()
        held = len(sender.sent)
        sender.open.set()
        rows = await desk.finish(12)

        assert (held, sender.peak) == (3, 3)
        assert max(row["in_flight_at_send"] for row in rows) == 3

    run(tmp_path, scenario, work=items(12), limit=3, is_open=False)


def test_a_repeated_poll_hands_out_nothing_twice(tmp_path: Path):
    """The driver repeats a poll whose reply was lost: its shard is known, its items are sent once."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        for _ in range(3):
            await desk.loop.poll(Poll([Shard(1, items(5))]))
        rows = await desk.finish(5)
        await desk.loop.poll(Poll([Shard(1, items(5))]))
        await desk.controller.turn()

        assert len(rows) == 5
        assert sorted(sender.sent) == [f"i{n}" for n in range(5)]

    run(tmp_path, scenario, work=items(5))


def test_written_files_are_reported_until_acknowledged(tmp_path: Path):
    """A reply that got lost costs nothing: the next one says it again."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        await desk.finish(3)
        first = await desk.loop.poll(Poll())
        again = await desk.loop.poll(Poll())
        last = max(written.number for written in first.written)
        after = await desk.loop.poll(Poll(acked=last))

        assert list(again.written[: len(first.written)]) == list(first.written)
        assert all(written.number > last for written in after.written)

    run(tmp_path, scenario, work=items(3))


def test_pauses_do_not_spend_attempts(tmp_path: Path):
    """Three 429s with two attempts allowed, then an answer: the item is ok, and says that it was sent four times."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        (row,) = await desk.finish(1)

        assert (row["status"], row["attempts"], row["error_kind"]) == ("ok", 4, None)
        assert row["retry_wait_s"] > 0

    paused = [make("rate_limited", "slow down", retry_after_s=0.0) for _ in range(3)]
    run(tmp_path, scenario, work=items(1), script={"i0": paused}, max_attempts=2)


def test_a_failure_that_lasts_ends_as_a_failed_row(tmp_path: Path):
    """After the last attempt: failed, with the reason; no empty answer, no score of zero."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        (row,) = await desk.finish(1)

        assert sender.sent == ["i0", "i0"]
        assert (row["status"], row["error_kind"], row["attempts"]) == ("failed", "server_error", 2)
        assert (row["response"], row["score"], row["correct"], row["finish_reason"]) == (None, None, None, None)

    script = {"i0": [make("server_error", "broken") for _ in range(5)]}
    run(tmp_path, scenario, work=items(1), script=script, max_attempts=2)


def test_a_retry_that_works_is_an_answer(tmp_path: Path):
    """A lone reset is tried again at once; the row is ok and the first try is kept in attempts/."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        (row,) = await desk.finish(1)
        reply = await desk.poll_until(lambda reply: reply.unwritten == 0, drain=True)

        assert (row["status"], row["attempts"], row["retry_wait_s"]) == ("ok", 2, 0.0)
        kinds = sorted((one["attempt"], one["kind"]) for one in desk.rows(reply, "attempts"))
        assert kinds == [(1, "reset"), (2, "ok")]
        assert reply.counters.retries == 1

    run(tmp_path, scenario, work=items(1), script={"i0": [make("reset", "closed")]})


def test_a_refused_item_is_not_tried_again(tmp_path: Path):
    """Sent once, stored as failed with its kind; the others go on."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        rows = await desk.finish(3)

        assert sender.sent.count("i1") == 1
        assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
        assert (rows[1]["error_kind"], rows[1]["error_message"]) == ("too_long", "9,000 of 8,192 tokens")

    script = {"i1": [make("too_long", "9,000 of 8,192 tokens")]}
    run(tmp_path, scenario, work=items(3), script=script, max_attempts=6)


def test_a_wrong_key_stops_sending_and_hands_the_item_back(tmp_path: Path):
    """Three refusals, then none: the reply says why, wants nothing more, and the item is owed again, not failed."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        reply = await desk.poll_until(lambda reply: reply.fatal is not None)
        for _ in range(3):
            await desk.controller.turn()

        assert reply.fatal is not None and reply.fatal.kind == "auth"
        assert (reply.released, reply.wants, reply.counters.finished) == ((Key(0),), 0, 0)
        assert sender.sent == ["i0"] * 3
        drained = await desk.poll_until(lambda reply: reply.queued == 0, drain=True)
        assert sorted(drained.released) == [Key(n) for n in range(6)]

    script = {f"i{n}": [make("auth", "no") for _ in range(3)] for n in range(6)}
    run(tmp_path, scenario, work=items(6), script=script, limit=1)


def test_a_quota_that_is_gone_stops_sending_at_once(tmp_path: Path):
    """One refusal is enough: what was answered stays, the refused item is owed again with no attempt spent."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        reply = await desk.poll_until(lambda reply: reply.fatal is not None)

        assert reply.fatal is not None and reply.fatal.kind == "quota"
        assert (reply.released, reply.counters.answered, reply.counters.failures) == ((Key(1),), 1, {})
        assert sender.sent == ["i0", "i1"]

    run(tmp_path, scenario, work=items(6), script={"i1": [make("quota", "gone")]}, limit=1)


def test_an_attempt_after_a_timeout_has_twice_the_time_and_is_the_last(tmp_path: Path):
    """A request that hangs is tried once more with patience; then the item is a typed failure, whatever is allowed."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        rows = await desk.finish(2)

        assert sender.deadlines == {"i0": [324.8, 649.6], "i1": [324.8]}
        assert (rows[0]["status"], rows[0]["error_kind"], rows[0]["attempts"]) == ("failed", "timeout", 2)

    script = {"i0": [make("timeout", "late") for _ in range(6)]}
    run(tmp_path, scenario, work=items(2), script=script, max_attempts=6)


def test_a_response_without_an_answer_is_tried_three_times(tmp_path: Path):
    """Twice it may be chance; a third time it is the item."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        (row,) = await desk.finish(1)

        assert (row["status"], row["error_kind"], row["attempts"]) == ("failed", "no_answer", 3)

    script = {"i0": [make("no_answer", "nothing") for _ in range(6)]}
    run(tmp_path, scenario, work=items(1), script=script, max_attempts=6)


def test_drain_releases_what_waits_and_finishes_what_is_out(tmp_path: Path):
    """Two in flight, four queued: four keys come back at once, two rows come later, nothing more is sent."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        await sender.until_sent(2)
        first = await desk.loop.poll(Poll(drain=True))
        sender.open.set()
        last = await desk.poll_until(lambda reply: reply.in_flight + reply.unwritten == 0, drain=True)

        assert list(first.released) == [Key(n) for n in range(2, 6)]
        assert (first.queued, first.in_flight, first.wants) == (0, 2, 0)
        assert [row["item_index"] for row in desk.rows(last)] == [0, 1]
        assert sender.sent == ["i0", "i1"]

    run(tmp_path, scenario, work=items(6), limit=2, is_open=False)


def test_a_retry_that_falls_into_a_drain_is_released(tmp_path: Path):
    """A request in flight that fails while draining is owed again: neither lost nor stored as failed."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        await sender.until_sent(1)
        await desk.loop.poll(Poll(drain=True))
        sender.open.set()
        reply = await desk.poll_until(lambda reply: reply.in_flight == 0, drain=True)

        assert (reply.released, reply.counters.finished) == ((Key(0),), 0)

    run(tmp_path, scenario, work=items(1), script={"i0": [make("server_error", "x")]}, is_open=False)


def test_a_prompt_that_cannot_be_made_is_a_failed_row(tmp_path: Path):
    """A null in the item's column: failed with kind "prompt", nothing sent for it, its permit is free again."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        rows = await desk.finish(2)

        assert sender.sent == ["i1"]
        assert (rows[0]["status"], rows[0]["error_kind"], rows[0]["response"]) == ("failed", "prompt", None)
        assert "null" in rows[0]["error_message"]
        assert rows[1]["status"] == "ok"
        assert (await desk.loop.poll(Poll())).in_flight == 0

    run(tmp_path, scenario, work=[item(0, question=None), item(1)], limit=1)


def test_a_template_that_never_works_ends_the_run(tmp_path: Path):
    """A column that is not there is a mistake in the config, not a property of the item."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        reply = await desk.poll_until(lambda reply: reply.fatal is not None)

        assert reply.fatal is not None and reply.fatal.kind == "config"
        assert "question" in reply.fatal.message
        assert (sender.sent, reply.counters.finished) == ([], 0)

    run(tmp_path, scenario, work=[WorkItem(Example(0, "i0", "", None, {"other": "x"}))])


def test_a_scorer_that_fails_leaves_no_score(tmp_path: Path):
    """The answer is kept and ok; score and verdict are null, the reason is named. Never a zero."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        rows = await desk.finish(2)

        assert [row["status"] for row in rows] == ["ok", "ok"]
        assert (rows[0]["score"], rows[0]["correct"], rows[0]["error_kind"]) == (None, None, "scorer")
        assert "i0" in rows[0]["error_message"]
        assert rows[0]["response"] == "Answer: yes"
        assert (rows[1]["score"], rows[1]["error_kind"]) == (0.0, None)

    run(tmp_path, scenario, work=[item(0, expected="no number"), item(1, expected="4")], scorer="numeric")


def test_without_a_reference_there_is_no_score(tmp_path: Path):
    """Nothing to compare with: no verdict, and no error either."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        (row,) = await desk.finish(1)

        assert (row["status"], row["score"], row["correct"], row["error_kind"]) == ("ok", None, None, None)

    run(tmp_path, scenario, work=[item(0, expected=None)])


@pytest.mark.parametrize("kind", ["rate_limited", "overloaded", "reset"])
def test_a_rejection_brakes_until_an_exchange_that_began_after_it(tmp_path: Path, kind: str):
    """The exchange that was out when the 429 came knows nothing of it: its answer does not release the brake."""

    async def main() -> None:
        sender, controller = ScriptedSender({"i0": [make(kind, "less", retry_after_s=60.0)]}), SlowController()
        async with working(tmp_path, controller.exchange, sender, work=items(4)):
            _, answer = await controller.asked()
            answer(1)
            await sender.until_sent(1)
            _, answer_before = await controller.asked()
            sender.open.set()  # i0 is rejected now: one permit free, three items ready
            answer_before(1)
            report, answer_after = await controller.asked()
            braked = list(sender.sent)
            answer_after(1)
            await sender.until_sent(2)

            assert braked == ["i0"]
            assert [sample.kind for sample in report.observation.samples] == [kind]

    asyncio.run(main())


def test_a_lost_exchange_is_said_again(tmp_path: Path):
    """The report carries samples: after a lost call it comes again with the same number and the same samples."""

    async def main() -> None:
        sender, controller, lost = ScriptedSender({}), Controller(2), defaultdict[int, list[Report]](list)

        async def exchange(report: Report) -> Lease:
            lost[report.sequence].append(report)
            if report.observation.samples and len(lost[report.sequence]) == 1:
                raise ConnectionError("controller away")
            return await controller.exchange(report)

        sender.open.set()
        async with working(tmp_path, exchange, sender, work=items(2)) as loop:
            desk = Desk(loop, controller, LocalStore(tmp_path))
            await desk.poll_until(lambda _: any(len(reports) == 2 for reports in lost.values()))

            (twice,) = (reports for reports in lost.values() if len(reports) == 2)
            assert twice[0] == twice[1]
            assert len(twice[0].observation.samples) == 2

    asyncio.run(main())


def test_a_dead_loop_is_told_to_the_driver(tmp_path: Path):
    """A worker whose exchange crashed would look idle for ever: the next poll says "internal" instead."""

    async def main() -> None:
        crashed = asyncio.Event()

        async def exchange(report: Report) -> Lease:
            crashed.set()
            raise ZeroDivisionError

        async with working(tmp_path, exchange, ScriptedSender({}), work=items(1)) as loop:
            reply = PollReply()
            async with asyncio.timeout(PATIENCE_S):
                while (
                    reply.fatal is None
                ):  # between the crash and the end of the task lie a few turns of the event loop
                    await crashed.wait()
                    await asyncio.sleep(0)
                    reply = await loop.poll(Poll())

            assert reply.fatal.kind == "internal"
            assert "_exchange_loop: a bug in evalpipe: ZeroDivisionError at worker.py" in reply.fatal.message
            assert reply.wants == 0

    asyncio.run(main())


def test_a_bug_in_one_attempt_gives_its_permit_back(tmp_path: Path):
    """An exception nobody foresaw ends the run as "internal"; no permit leaks and nothing is stored for the item."""

    async def scenario(desk: Desk, sender: ScriptedSender) -> None:
        reply = await desk.poll_until(lambda reply: reply.fatal is not None and reply.in_flight == 0)

        assert reply.fatal is not None and reply.fatal.kind == "internal"
        assert "KeyError" in reply.fatal.message
        assert reply.counters.finished == 0

    run(tmp_path, scenario, work=items(1), script={"i0": [KeyError("bug")]})  # type: ignore[list-item]


def test_stop_right_after_a_poll_ends(tmp_path: Path):
    """A poll wakes the send loop; the cancel that follows at once must still end it."""

    async def main() -> None:
        sender, controller = ScriptedSender({}), SlowController()
        async with working(tmp_path, controller.exchange, sender, work=[]) as loop:
            await controller.asked()
            await loop.poll(Poll())
            stopping = asyncio.create_task(loop.stop())
            ended, _ = await asyncio.wait({stopping}, timeout=STOP_S)

            assert ended

    asyncio.run(main())
