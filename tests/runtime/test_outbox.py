"""Rows on their way to the store: kept until a file is durable, reported until committed."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from store.store_rows import make_result

from evalpipe.config import Config
from evalpipe.records import AttemptRecord
from evalpipe.runtime.messages import WorkerSpec
from evalpipe.runtime.outbox import ATTEMPTS_EVERY_S, FULL_ROWS, GIVE_UP_S, MAX_BYTES, MAX_ROWS, Outbox
from evalpipe.store.local import LocalStore
from evalpipe.store.segments import read_segment, spec_of

SPEC = WorkerSpec(
    name="w0",
    incarnation=2,
    run_name="r",
    config=Config(),
    base_url="http://127.0.0.1:1/v1",
    model="m",
    store_url="unused",
    writer="0123456789abcdef",
    writer_epoch=3,
    spec_sha256="f" * 64,
    cap=8,
)


class Disk(LocalStore):
    """A local store that can be full, lose replies, or be slow until `go` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_full = False
        self.is_mute = False  # writes, and says nothing; cannot be asked either
        self.tries = 0
        self.go = threading.Event()
        self.go.set()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        assert self.go.wait(5.0)
        self.tries += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left")
        written = super().put_if_absent(key, data)
        if self.is_mute:
            raise TimeoutError(errno.ETIMEDOUT, "no answer")
        return written

    def get(self, key: str) -> bytes:
        if self.is_mute:
            raise TimeoutError(errno.ETIMEDOUT, "no answer")
        return super().get(key)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "run")


@pytest.fixture
def outbox(disk: Disk) -> Outbox:
    return Outbox(disk, SPEC)


def run(steps: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(steps)


def attempt(index: int) -> AttemptRecord:
    return AttemptRecord(index, 0, 0, 1, "ok", "", "", 1_700_000_000.0, 0.1, None, 5, None, 1, 8, 0, "w0.2")


def items_in(disk: Disk, outbox: Outbox, *, kind: str = "results") -> list[list[int]]:
    """Item indices of each reported file."""
    return [
        read_segment(disk, written.info)["item_index"].to_pylist()
        for written in outbox.pending(acked=0)
        if written.info.kind == kind
    ]


def test_rows_become_one_file_with_the_writers_stamp(disk: Disk, outbox: Outbox):
    """Name and content say which driver, process and run the rows belong to."""
    for index in range(3):
        outbox.add(make_result(index))

    run(outbox.flush(now=100.0))

    (written,) = outbox.pending(acked=0)
    assert (written.number, written.info.rows, outbox.unwritten) == (1, 3, 0)
    assert written.info.path.startswith("segments/3-01234567-w0.2-1-")
    assert spec_of(read_segment(disk, written.info)) == SPEC.spec_sha256


def test_an_empty_outbox_writes_nothing(disk: Disk, outbox: Outbox):
    """Idle workers leave no empty files behind."""
    run(outbox.flush(now=100.0, everything=True))

    assert (list(outbox.pending(acked=0)), disk.list("")) == ([], [])


def test_a_report_stays_until_it_is_acknowledged(outbox: Outbox):
    """Numbers rise by one a file; acknowledging the second forgets the first too."""

    async def three_files() -> None:
        for index in range(3):
            outbox.add(make_result(index))
            await outbox.flush(now=100.0)

    run(three_files())

    assert [written.number for written in outbox.pending(acked=0)] == [1, 2, 3]
    assert [written.number for written in outbox.pending(acked=2)] == [3]
    assert [written.number for written in outbox.pending(acked=0)] == [3]


def test_a_write_that_fails_keeps_the_rows(disk: Disk, outbox: Outbox):
    """A full disk loses nothing: the next flush writes the same rows, in their order, before newer ones."""
    outbox.add(make_result(1))
    outbox.add(make_result(2))
    disk.is_full = True
    run(outbox.flush(now=100.0))
    kept = outbox.unwritten
    outbox.add(make_result(3))
    disk.is_full = False

    run(outbox.flush(now=102.0))

    assert kept == 2
    assert "no space left" in outbox.last_error
    assert items_in(disk, outbox) == [[1, 2], [3]]


def test_nothing_more_should_be_sent_while_storage_refuses(disk: Disk, outbox: Outbox):
    """From the first refused write on, until one goes through; and the reason is told meanwhile."""
    seen = [(outbox.is_full, outbox.trouble)]
    outbox.add(make_result(1))
    disk.is_full = True
    run(outbox.flush(now=100.0))
    seen.append((outbox.is_full, outbox.trouble))
    disk.is_full = False
    run(outbox.flush(now=102.0))
    seen.append((outbox.is_full, outbox.trouble))

    assert [is_full for is_full, _ in seen] == [False, True, False]
    assert ["no space left" in trouble for _, trouble in seen] == [False, True, False]


def test_a_write_that_worked_without_an_answer_is_not_made_twice(disk: Disk, outbox: Outbox):
    """The second try writes the very same file, though newer rows came in: attempts have no key to tell them apart."""
    outbox.add_attempt(attempt(1))
    disk.is_mute = True
    run(outbox.flush(now=100.0, everything=True))
    outbox.add_attempt(attempt(2))
    disk.is_mute = False

    run(outbox.flush(now=102.0, everything=True))

    assert items_in(disk, outbox, kind="attempts") == [[1], [2]]
    assert len(disk.list("attempts/")) == 2


def test_a_full_disk_is_asked_less_and_less_often(disk: Disk, outbox: Outbox):
    """A draining worker is flushed five times a second: in a minute that makes a dozen tries, not 300."""

    async def minute() -> None:
        outbox.add(make_result(1))
        disk.is_full = True
        for step in range(300):
            await outbox.flush(now=100.0 + step * 0.2)

    run(minute())

    assert 8 <= disk.tries <= 14


def test_storage_is_broken_after_a_minute_of_failures(disk: Disk, outbox: Outbox):
    """One success in between starts the time anew."""

    async def story() -> list[bool]:
        seen = []
        for now, is_full in [
            (0.0, True),
            (GIVE_UP_S - 1, True),
            (GIVE_UP_S + 20, False),
            (200.0, True),
            (199.0 + GIVE_UP_S, True),
            (220.0 + GIVE_UP_S, True),
        ]:
            outbox.add(make_result(int(now)))
            disk.is_full = is_full
            await outbox.flush(now=now)
            seen.append(outbox.is_broken)
        return seen

    assert run(story()) == [False, False, False, False, False, True]


def test_many_rows_or_many_bytes_are_due_at_once(disk: Disk):
    """500 rows, or 8 MiB of text, do not wait for the timer."""
    by_rows, by_bytes = Outbox(disk, SPEC), Outbox(disk, SPEC)
    for index in range(MAX_ROWS - 1):
        by_rows.add(make_result(index))
    by_bytes.add(make_result(0, text="x" * (MAX_BYTES - 10_000)))
    early = (by_rows.is_due.is_set(), by_bytes.is_due.is_set())

    by_rows.add(make_result(MAX_ROWS))
    by_bytes.add(make_result(1, text="x" * 10_000))

    assert early == (False, False)
    assert (by_rows.is_due.is_set(), by_bytes.is_due.is_set()) == (True, True)


def test_failing_storage_is_asked_by_the_timer_not_by_every_row(disk: Disk, outbox: Outbox):
    """With 500 rows kept by a full disk, the next answer must not write at once: patience is counted in flushes."""
    for index in range(MAX_ROWS):
        outbox.add(make_result(index))
    disk.is_full = True
    run(outbox.flush(now=100.0))

    outbox.add(make_result(MAX_ROWS))

    assert not outbox.is_due.is_set()


def test_a_full_outbox_says_so(outbox: Outbox):
    """At 5,000 rows that no file holds the worker has to stop sending."""
    for index in range(FULL_ROWS - 1):
        outbox.add(make_result(index))
    before = outbox.is_full

    outbox.add(make_result(FULL_ROWS))

    assert (before, outbox.is_full) == (False, True)


def test_rows_count_as_unwritten_until_the_file_is_there(disk: Disk, outbox: Outbox):
    """While the disk works the rows are neither in memory nor safe; a row added meanwhile goes to the next file."""

    async def story() -> tuple[int, int]:
        outbox.add(make_result(1))
        disk.go.clear()
        flushing = asyncio.create_task(outbox.flush(now=100.0))
        await asyncio.sleep(0)
        outbox.add(make_result(2))
        during = outbox.unwritten
        disk.go.set()
        await flushing
        after = outbox.unwritten
        await outbox.flush(now=101.0)
        return during, after

    assert run(story()) == (2, 1)
    assert items_in(disk, outbox) == [[1], [2]]


def test_two_flushes_at_once_write_a_row_once(disk: Disk, outbox: Outbox):
    """The timer and a draining poll may meet."""

    async def both() -> None:
        outbox.add(make_result(1))
        await asyncio.gather(outbox.flush(now=100.0), outbox.flush(now=100.0, everything=True))

    run(both())

    assert items_in(disk, outbox) == [[1]]


def test_attempts_are_written_rarely_and_at_the_end(disk: Disk, outbox: Outbox):
    """Every ten seconds, or when everything has to go."""

    async def story() -> list[int]:
        files = []
        for now, everything in [(100.0, False), (100.0 + ATTEMPTS_EVERY_S - 1, False), (111.0, False), (112.0, True)]:
            outbox.add_attempt(attempt(len(files)))
            await outbox.flush(now=now, everything=everything)
            files.append(len(items_in(disk, outbox, kind="attempts")))
        return files

    assert run(story()) == [1, 1, 2, 3]
    assert items_in(disk, outbox, kind="attempts") == [[0], [1, 2], [3]]


def test_attempts_survive_a_failed_write(disk: Disk, outbox: Outbox):
    """Every attempt is kept, also those made while storage failed."""
    outbox.add_attempt(attempt(1))
    disk.is_full = True
    run(outbox.flush(now=100.0, everything=True))
    disk.is_full = False
    outbox.add_attempt(attempt(2))

    run(outbox.flush(now=101.0, everything=True))

    assert items_in(disk, outbox, kind="attempts") == [[1], [2]]
