"""What a resume of a large run costs: ten million items, a log of twenty thousand segments, and what it takes to go on.

    python benchmarks/resume.py [--items 10000000] [--done 0.999] [--per-entry 10] [--dataset]

The log is real (written through the store, with its checkpoints), its keys lie in shuffled order as in a run. Segments
are empty files under their real names: a resume lists them and reads none. A driver's steps are timed one by one in a
process of its own, so that its peak memory is theirs alone. Target (issue 3): 60 s and 2 GB. Two more processes replay
every entry from the first (what `verify` adds) and commit the merges of a compaction (without its rows).

--dataset: open a dataset of so many small rows instead, which every start and resume does too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalpipe.store.keys import KeySet
from evalpipe.store.local import LocalStore, OsCalls
from evalpipe.store.log import Log, follow, read_state
from evalpipe.store.orphans import adopt_orphans
from evalpipe.store.segments import SegmentInfo
from evalpipe.store.spec import Spec, write_spec
from evalpipe.store.state import LogState

ROWS = 500
SPEC_OF = "benchmark"


class Unsynced(OsCalls):
    """Building what is measured later need not survive a power cut."""

    def sync_file(self, fd: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


def order_of(items: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).permutation(items).astype(np.int64)


def spec_of(items: int) -> Spec:
    return Spec({"model": SPEC_OF}, fingerprint="f" * 64, items=items)


def build(root: Path, *, items: int, done: float, per_entry: int) -> None:
    """Write the log of a driver that was killed after so much of the run."""
    store = LocalStore(root, os_calls=Unsynced())
    log = Log(store)
    log.claim(write_spec(store, spec_of(items)).sha256)
    order = order_of(items)[: int(items * done)]
    starts = iter(range(0, len(order), ROWS))
    while batch := [_segment(order, start, log) for start in itertools.islice(starts, per_entry)]:
        log.commit(batch)
    folder = root / "segments"
    folder.mkdir()
    for path in log.state.files:
        (root / path).touch()


def _segment(order: NDArray[np.int64], start: int, log: Log) -> SegmentInfo:
    items = np.sort(order[start : start + ROWS])
    failed = items[items % 1000 == 0]
    number = start // ROWS
    return SegmentInfo(
        path=f"segments/{log.epoch}-{log.writer[:8]}-w{number % 16}.1-{number}-{number:016x}.parquet",
        rows=len(items),
        bytes=750_000,
        sha256=f"{number:064x}",
        ok=KeySet.from_groups({(0, 0): np.setdiff1d(items, failed)}),
        failed=KeySet.from_groups({(0, 0): failed}),
    )


class Table:
    """Steps, their seconds on the wall and of CPU, and peak memory so far, printed as they end."""

    def __init__(self) -> None:
        self._began = (time.perf_counter(), time.process_time())
        print(f"\n{'step':<58}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}")
        self._print("(start: Python, numpy, pyarrow)", 0.0, 0.0)

    @contextmanager
    def step(self, name: str, note: Callable[[], str] = lambda: "") -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self._print(name + (f" ({note()})" if note() else ""), time.perf_counter() - wall, time.process_time() - cpu)

    def total(self, name: str) -> None:
        wall, cpu = self._began
        self._print(name, time.perf_counter() - wall, time.process_time() - cpu)

    def _print(self, name: str, wall_s: float, cpu_s: float) -> None:
        print(f"{name:<58}{wall_s:>9.2f}{cpu_s:>9.2f}{peak_mb():>9.0f}", flush=True)


def peak_mb() -> float:
    """Return the largest resident size of this process (Linux); getrusage's starts with that of its parent."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def resume(root: Path, *, items: int) -> None:
    """Do what a driver does before its first request, in its order."""
    from evalpipe.records import Example
    from evalpipe.runtime.agenda import owed
    from evalpipe.runtime.dispenser import Dispenser

    order = order_of(items)
    store = LocalStore(root)
    table = Table()
    with table.step("read_state", lambda: f"{len(state.files)} segments, {state.version} entries"):
        state = read_state(store)
    log = Log(store)
    with table.step("claim"):
        log.claim(spec_of(items).sha256)
    with table.step("adopt", lambda: f"{len(adoption.adopted)} orphans"):
        adoption = adopt_orphans(store, log)
    with table.step("agenda", lambda: f"{agenda.count} owed"):
        agenda = owed(log.state, order=order, repeats=1)
    with table.step("first 1,000 items dealt"):
        dispenser = Dispenser(
            agenda,
            is_done=log.state.is_done,
            load=lambda index: Example(index, str(index), "", None, {}),
        )
        dispenser.open()
        taken = sum(len(shard.items) for shard in dispenser.take("w0", 1000, workers=16))
    assert taken == min(1000, agenda.count)
    with table.step("one more commit"):
        log.commit([_segment(order[-ROWS:], 0, log)])
    table.total("resume, without the dataset")


def replay(root: Path) -> None:
    """Apply every entry from the first, as `verify` does before it reads rows."""
    state = LogState()
    with Table().step("replay from the first entry", lambda: f"{state.version} entries"):
        follow(LocalStore(root), state)


def merge(root: Path, *, items: int) -> None:
    """Commit a compaction: for each 170 segments (128 MiB of rows) one part with their keys."""
    log = Log(LocalStore(root, os_calls=Unsynced()))
    log.claim(spec_of(items).sha256)
    table = Table()
    merges = []
    with table.step("merges of the log", lambda: f"{len(merges)} commits"):
        while batch := [file for path, file in log.state.files.items() if path.startswith("segments/")][:170]:
            ok, failed = (_union([getattr(file.info, name) for file in batch]) for name in ("ok", "failed"))
            path = f"parts/{len(merges)}.parquet"
            part = SegmentInfo(path, rows=len(ok) + len(failed), bytes=1, sha256="0", ok=ok, failed=failed)
            merges.append(log.commit([part], remove=[file.info.path for file in batch]))
    with table.step("read_state after it"):
        read_state(LocalStore(root))


def _union(sets: Sequence[KeySet]) -> KeySet:
    return KeySet.from_groups({(0, 0): np.sort(np.concatenate([i for keys in sets for _, i in keys.groups()] or [[]]))})


def open_data(*, items: int) -> None:
    """Open a dataset of small rows (id, question, answer: 60 bytes), as every start and resume does."""
    from evalpipe.config import DatasetConfig
    from evalpipe.data import open_dataset

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        with path.open("w") as file:
            for start in range(0, items, 100_000):
                numbers = range(start, min(start + 100_000, items))
                file.writelines(
                    json.dumps({"id": f"i{n}", "question": f"{n}+1?", "answer": n + 1}) + "\n" for n in numbers
                )
        table = Table()
        with table.step(f"open_dataset ({items} rows)"), open_dataset(DatasetConfig(path=str(path))):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--done", type=float, default=0.999, help="share of the items that the log has")
    parser.add_argument("--per-entry", type=int, default=10, help="segments a commit; 1 is a slow run's")
    parser.add_argument("--dataset", action="store_true", help="open a dataset of so many rows instead")
    parser.add_argument("--part", nargs=2, metavar=("NAME", "FOLDER"), help="one process of the command itself")
    arguments = parser.parse_args()
    if arguments.dataset:
        open_data(items=arguments.items)
    elif arguments.part:
        run_part(arguments.part[0], Path(arguments.part[1]), items=arguments.items)
    else:
        build_and_measure(items=arguments.items, done=arguments.done, per_entry=arguments.per_entry)


def run_part(name: str, root: Path, *, items: int) -> None:
    if name == "replay":
        replay(root)
    else:
        {"resume": resume, "merge": merge}[name](root, items=items)


def build_and_measure(*, items: int, done: float, per_entry: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        began = time.perf_counter()
        build(root, items=items, done=done, per_entry=per_entry)
        log_mb = sum(path.stat().st_size for path in (root / "_log").iterdir()) / 2**20
        print(f"built in {time.perf_counter() - began:.0f} s: a log of {log_mb:.0f} MB")
        for name in ("resume", "replay", "merge"):
            command = [sys.executable, __file__, "--items", str(items), "--part", name, str(root)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
