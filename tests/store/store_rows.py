"""Rows, a small run and a few stores for the tests of the store."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from evalpipe.records import Result
from evalpipe.store.local import LocalStore, OsCalls
from evalpipe.store.log import Log
from evalpipe.store.objects import ObjectStore
from evalpipe.store.segments import SegmentInfo, write_segment
from evalpipe.store.spec import Spec, write_spec

SPEC = Spec(semantic={"model": "m", "prompt": {"template": "{{ q }}"}}, fingerprint="f" * 64, items=20)


def make_result(
    item_index: int, *, repeat: int = 0, generation: int = 0, failed: bool = False, text: str = "yes"
) -> Result:
    return Result(
        item_id=f"item-{item_index}",
        item_index=item_index,
        repeat=repeat,
        generation=generation,
        status="failed" if failed else "ok",
        category="logic",
        expected="yes",
        prompt="Is it?",
        response=None if failed else text,
        reasoning=None,
        finish_reason=None if failed else "stop",
        prompt_tokens=None if failed else 12,
        output_tokens=None if failed else 3,
        cached_tokens=None,
        usage_source=None if failed else "server",
        ttft_s=None if failed else 0.05,
        rtt_s=0.25,
        tpot_s=None if failed else 0.1,
        wait_s=0.0,
        attempts=1,
        retry_wait_s=0.0,
        in_flight_at_send=4,
        limit_at_send=8,
        sent_at=1_700_000_000.123456,
        endpoint="http://127.0.0.1:1/v1",
        model="m",
        request_id=None,
        score=None if failed else 1.0,
        correct=None if failed else True,
        extracted=None if failed else text,
        error_kind="server_error" if failed else None,
        error_code="500" if failed else None,
        error_message="no luck" if failed else None,
        prompt_sha256="0" * 64,
        worker="w0",
        writer_epoch=1,
        permit_epoch=0,
        metadata="{}",
    )


class SmallRun:
    """A claimed run of 20 items; `write` makes segments and says nothing to the log."""

    def __init__(self, store: ObjectStore, *, spec: Spec = SPEC) -> None:
        self.store = store
        self.spec = write_spec(store, spec)
        self.log = Log(store)
        self.log.claim(spec.sha256)
        self._seq = count()

    def write(
        self, items: Iterable[int], *, failed: Iterable[int] = (), generation: int = 0, text: str = "yes"
    ) -> SegmentInfo:
        lost = set(failed)
        rows = [make_result(i, generation=generation, failed=i in lost, text=text) for i in items]
        return self.write_rows(rows)

    def write_rows(self, rows: list[Result]) -> SegmentInfo:
        return write_segment(
            self.store,
            rows,
            epoch=self.log.epoch,
            writer=self.log.writer,
            worker="w0",
            seq=next(self._seq),
            spec_sha256=self.spec.sha256,
        )


class Relay(LocalStore):
    """A store whose next write (`on_write`) can be made to misbehave."""

    on_write = staticmethod(lambda write: write())

    def put_if_absent(self, key: str, data: bytes) -> bool:
        on_write, self.on_write = self.on_write, lambda write: write()
        return on_write(lambda: super(Relay, self).put_if_absent(key, data))


class Unsynced(OsCalls):
    """The real file system without its fsyncs: for tests that build many runs and cut no power."""

    def sync_file(self, fd: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


def copy_run(run: SmallRun, root: Path) -> SmallRun:
    """Copy a run with all its files, its driver still at work on the copy."""
    shutil.copytree(run.store.url, root)
    twin = copy.copy(run)
    twin.store = LocalStore(root, os_calls=Unsynced())
    twin.log = Log(twin.store, writer=run.log.writer)
    twin.log.replay()
    twin.log.epoch = run.log.epoch
    return twin


def lose_reply(write) -> bool:
    write()
    raise TimeoutError("no answer")


def lose_request(write) -> bool:
    raise TimeoutError("no answer")


def flip_byte(store: LocalStore, key: str, *, at: int) -> None:
    data = bytearray(store.get(key))
    data[at] ^= 0x10
    store.put(key, bytes(data))
