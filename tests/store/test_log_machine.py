"""Drivers on one log in any order and any weather: no result lost, none counted twice, one writer an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evalpipe.errors import Fenced, StateError
from evalpipe.records import Key
from evalpipe.store.entry import Entry, version_of
from evalpipe.store.keys import ANSWERED, FAILED, KeySet
from evalpipe.store.log import Log, follow, read_state
from evalpipe.store.objects import NotFound
from evalpipe.store.segments import SegmentInfo
from evalpipe.store.state import LogState

#: what happens to a write: answered; done, reply lost; not done, reply lost; done some time later, reply lost;
#: refused over a conflict with nobody
WEATHER = st.sampled_from(["fair", "fair", "reply lost", "request lost", "late", "conflict"])
ITEM = st.integers(0, 25)


class Bucket:
    """Objects in memory behind bad weather, with a listing that may be out of date."""

    url = "memory://run"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.weather = "fair"
        self.old_listing: list[str] | None = None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        weather, self.weather = self.weather, "fair"
        if weather == "conflict":
            return False
        if weather == "late":
            self.late.append((key, data))
        is_new = weather in ("fair", "reply lost") and self.land(key, data)
        if weather in ("reply lost", "request lost", "late"):
            raise TimeoutError("no answer")
        return is_new

    def land(self, key: str, data: bytes) -> bool:
        is_new = key not in self.objects
        self.objects.setdefault(key, data)
        return is_new

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise NotFound(f"no object {key}") from None

    def list(self, prefix: str) -> list[str]:
        keys = self.old_listing if self.old_listing is not None else self.objects
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def sweep(self) -> int:
        return 0


@dataclass(eq=False)
class Driver:
    """A process with its view of the log, and files that it has not been told are committed."""

    log: Log
    waiting: list[SegmentInfo] = field(default_factory=list)


class LogMachine(RuleBasedStateMachine):
    """Origins: for each file, which segment each of its rows was first written in; a merge hands them over."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket()
        self.drivers: list[Driver] = []
        self.origins: dict[str, dict[Key, str]] = {}
        self.acknowledged: set[str] = set()
        self.results: dict[Key, tuple[str, int]] = {}
        self.number = 0

    # --- what drivers do ---

    @initialize()
    def first_driver(self) -> None:
        self.start("fair")

    @rule(weather=WEATHER)
    def start(self, weather: str) -> None:
        """A driver that cannot claim ends; its claim may arrive all the same, even later."""
        driver = Driver(Log(self.bucket, writer=f"writer-{self.next_number()}"))
        if self.try_write(lambda: driver.log.claim("spec"), weather):
            self.drivers.append(driver)

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), ok=st.sets(ITEM, max_size=4), failed=st.sets(ITEM, max_size=2), weather=WEATHER)
    def commit(self, data: st.DataObject, ok: set[int], failed: set[int], weather: str) -> None:
        """One more file, and those whose commit was not answered."""
        driver = data.draw(st.sampled_from(self.drivers))
        path = f"segments/{self.next_number()}"
        info = self.file(path, ok=[Key(i) for i in ok], failed=[Key(i) for i in failed - ok])
        self.origins[path] = dict.fromkeys([*info.ok, *info.failed], path)
        driver.waiting.append(info)
        self.work(driver, lambda: driver.log.commit(driver.waiting), weather, then=driver.waiting)

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), weather=WEATHER)
    def merge(self, data: st.DataObject, weather: str) -> None:
        """Some files, as this driver knows them, become one; nobody is told twice that they are gone."""
        driver = data.draw(st.sampled_from(self.drivers))
        if not driver.log.state.files:
            return
        files = [
            driver.log.state.files[p]
            for p in data.draw(st.sets(st.sampled_from(sorted(driver.log.state.files)), min_size=1))
        ]
        path = f"parts/{self.next_number()}"
        ok, failed = ([key for file in files for key in getattr(file, name)] for name in ("answered", "failed"))
        info = self.file(path, ok=ok, failed=failed)
        self.origins[path] = {key: self.origins[file.info.path][key] for file in files for key in file.winners}
        gone = [file.info.path for file in files]
        self.work(driver, lambda: driver.log.commit([info], remove=gone), weather, then=[info])

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.drivers)).log.save_checkpoint()

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.drivers.remove(data.draw(st.sampled_from(self.drivers)))

    @precondition(lambda self: self.bucket.late)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """A write that its driver gave up on gets through after all."""
        late = data.draw(st.sampled_from(self.bucket.late))
        self.bucket.late.remove(late)
        self.bucket.land(*late)

    @rule()
    def freeze_listing(self) -> None:
        """From here on lists show what there is now, until they are frozen anew."""
        self.bucket.old_listing = list(self.bucket.objects)

    # --- what must hold ---

    @invariant()
    def a_reader_sees_the_log(self) -> None:
        """Shortcuts and stale listings make no difference."""
        assert read_state(self.bucket).to_json() == self.replayed().to_json()

    @invariant()
    def versions_are_contiguous_and_epochs_have_one_writer(self) -> None:
        entries = self.entries()
        owners: dict[int, str] = {}
        for number, entry in enumerate(entries, start=1):
            assert entry.version == number
            assert entry.epoch == len(owners) + (entry.claim is not None)
            assert owners.setdefault(entry.epoch, entry.writer) == entry.writer
        assert len(set(owners.values())) == len(owners)

    @invariant()
    def results_stay_what_they_were(self) -> None:
        """Each key has one result, of the segment that came first, for ever: through merges, claims and crashes."""
        state = self.replayed()
        results = {
            key: (self.origins[path][key], code)
            for path, file in state.files.items()
            for code, keys in ((ANSWERED, file.answered), (FAILED, file.failed))
            for key in keys
        }
        assert sum(len(file.winners) for file in state.files.values()) == len(results)
        assert self.results.items() <= results.items()
        assert (state.counts.ok, state.counts.failed) == tuple(
            sum(code == wanted for _, code in results.values()) for wanted in (ANSWERED, FAILED)
        )
        self.results = results
        state.validate()

    @invariant()
    def what_was_acknowledged_is_in_the_log(self) -> None:
        state = self.replayed()
        assert all(state.knows(path) for path in self.acknowledged)

    # --- how ---

    def work(self, driver: Driver, write: Callable[[], object], weather: str, *, then: list[SegmentInfo]) -> None:
        """Let a driver write; one that was fenced stops, and must have been."""
        try:
            if self.try_write(write, weather):
                self.acknowledged.update(info.path for info in then)
                driver.waiting.clear()
        except Fenced:
            assert self.replayed().epoch > driver.log.epoch
            self.drivers.remove(driver)
        except StateError as error:  # a merge of files that were merged by an earlier try of this driver
            assert "do not count" in str(error)

    def try_write(self, write: Callable[[], object], weather: str) -> bool:
        self.bucket.weather = weather
        try:
            write()
        except TimeoutError:
            return False
        finally:
            self.bucket.weather = "fair"
        return True

    def entries(self) -> list[Entry]:
        keys = sorted(key for key in self.bucket.objects if version_of(key) and key.startswith("_log/"))
        return [Entry.from_bytes(self.bucket.objects[key], key=key) for key in keys]

    def replayed(self) -> LogState:
        state = LogState()
        follow(self.bucket, state)
        return state

    def next_number(self) -> int:
        self.number += 1
        return self.number

    @staticmethod
    def file(path: str, *, ok: list[Key], failed: list[Key]) -> SegmentInfo:
        answered, lost = KeySet.from_keys(ok), KeySet.from_keys(failed)
        return SegmentInfo(path, rows=len(answered) + len(lost), bytes=1, sha256="0", ok=answered, failed=lost)


class TestLogMachine(LogMachine.TestCase):
    settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


@pytest.mark.chaos
@pytest.mark.timeout(900)
class TestLogMachineAtLength(LogMachine.TestCase):
    settings = settings(max_examples=300, stateful_step_count=40, deadline=None, derandomize=True)
