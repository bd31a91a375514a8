"""The parts of the simulation: the disk that forgets, processes that die and stand still, time that jumps."""

from __future__ import annotations

import asyncio
import random

import pytest
from simulation.disk import FOLDER, ROOT, Disk, Honesty
from simulation.loop import VirtualLoop
from simulation.network import Network
from simulation.scheduler import Process, Scheduler, Strand
from simulation.sim_os import DiskFaults, SimOs
from simulation.weather import NetworkSetup

from evalpipe.store.local import LocalStore, OsCalls


class FixedChoice(random.Random):
    """Chance that always decides for the loss."""

    def random(self) -> float:
        return 0.9

    def choice(self, options):
        return options[0]


def disk(*, honesty: Honesty | None = None, rng: random.Random | None = None) -> Disk:
    return Disk(rng or FixedChoice(), now=lambda: 0.0, honesty=honesty)


def store_on(disk: Disk, *, calls: list[str] | None = None, faults: DiskFaults | None = None) -> LocalStore:
    noted = [] if calls is None else calls
    os_calls = SimOs(
        disk,
        enter=lambda call, path: noted.append(call),
        count=lambda what: None,
        faults=faults or DiskFaults(),
        rng=random.Random(1),
    )
    return LocalStore(FOLDER, os_calls=os_calls)


def test_every_os_call_is_simulated():
    """A call that LocalStore learns and SimOs does not would go to the real disk."""
    of_the_store = {name for name in vars(OsCalls) if not name.startswith("_")}

    assert of_the_store <= {name for name in vars(SimOs) if not name.startswith("_")}


def test_what_the_store_wrote_survives_a_power_cut():
    """The store syncs file, name and folders: the object is there, whole."""
    hardware = disk()
    store = store_on(hardware)

    store.put_if_absent("a/b", b"payload")
    hardware.cut_power()

    assert store.get("a/b") == b"payload"


def test_without_fsync_it_does_not():
    """The same writes on a disk that ignores fsync leave nothing: the switch of the mutation works."""
    hardware = disk(honesty=Honesty(keeps_fsync=False))
    store = store_on(hardware)

    store.put_if_absent("a/b", b"payload")
    hardware.cut_power()

    assert store.list("") == []


def test_a_name_needs_its_own_sync():
    """A file that was synced is gone when the folder was not: its name is."""
    hardware = disk()
    hardware.make_folder(FOLDER)
    hardware.sync_folder(ROOT)
    fd = hardware.create_file(FOLDER / "a")
    hardware.write(fd, b"x")
    hardware.sync_file(fd)
    hardware.cut_power()

    assert list(hardware.files()) == []


def test_bytes_need_their_own_sync():
    """A name that was synced leads to an empty file when its bytes were not."""
    hardware = disk()
    hardware.make_folder(FOLDER)
    hardware.sync_folder(ROOT)
    hardware.write(hardware.create_file(FOLDER / "a"), b"x")
    hardware.sync_folder(FOLDER)
    hardware.cut_power()

    assert hardware.read(FOLDER / "a") == b""


def test_losses_differ_by_seed():
    """Of unsynced bytes all, some, none or zeros are left: over the seeds each of them."""
    left = set()
    for seed in range(60):
        hardware = disk(rng=random.Random(seed))
        hardware.make_folder(FOLDER)
        hardware.sync_folder(ROOT)
        hardware.write(hardware.create_file(FOLDER / "a"), b"xy")
        hardware.sync_folder(FOLDER)
        hardware.cut_power()
        left.add(hardware.read(FOLDER / "a"))

    assert left == {b"", b"x", b"xy", b"\0\0"}


def test_a_stale_listing_lacks_what_is_new():
    """What was written within the age of the cache is not shown; what it was told of before is."""
    now = 0.0
    hardware = Disk(random.Random(1), now=lambda: now)
    store = store_on(hardware, faults=DiskFaults(stale_list=1.0, stale_s=3.0))
    store.put_if_absent("a/old", b"x")
    now = 10.0
    store.put_if_absent("a/new", b"x")

    assert store.list("a/") == ["a/old"]


def test_a_dead_process_has_no_last_word():
    """Code of a killed process runs out, but what it tries in `finally` has no effect."""
    scheduler, written = Scheduler(), []
    process = Process("p", scheduler)

    def work() -> None:
        try:
            scheduler.sleep(10.0)
        finally:
            process.check()
            written.append("never")

    Strand(scheduler, process, work)
    scheduler.after(5.0, process.kill)
    scheduler.run(until=lambda: False, horizon_s=20.0)

    assert written == []
    assert process.died_at == 5.0


def test_a_process_that_stands_still_goes_on_later():
    """Everything meant for it waits, in order; the others go on."""
    scheduler, told = Scheduler(), []
    process = Process("p", scheduler)
    for at in (1.0, 3.0):
        scheduler.after(at, lambda: told.append(scheduler.now), process=process)
    scheduler.after(2.0, lambda: told.append("other"))
    scheduler.after(0.5, lambda: process.pause(9.5))
    scheduler.run(until=lambda: False, horizon_s=20.0)

    assert told == ["other", 10.0, 10.0]


def test_a_loop_sleeps_in_virtual_time():
    """An hour of asyncio takes no time, and a thread of the loop is a strand that others may overtake."""
    scheduler, told = Scheduler(), []
    process = Process("p", scheduler)
    loop = VirtualLoop(scheduler, process)

    async def work() -> None:
        await asyncio.sleep(3600.0)
        told.append(scheduler.now)
        await asyncio.to_thread(scheduler.sleep, 5.0)
        told.append(scheduler.now)

    scheduler.after(0.0, lambda: loop.spawn(work()), process=process)
    scheduler.run(until=lambda: len(told) == 2, horizon_s=10_000.0)
    loop.bury()

    assert told == [3600.0, 3605.0]


@pytest.mark.parametrize(("cut", "told"), [(False, ["reply"]), (True, ["failure"])])
def test_a_call_ends_once(cut: bool, told: list[str]):
    """With a reply, or with the failure of a call that went nowhere; never with both."""
    scheduler, heard = Scheduler(), []
    network = Network(scheduler, FixedChoice(), NetworkSetup(doubled=1.0), count=lambda what: None)
    caller, callee = Process("a", scheduler), Process("b", scheduler)
    if cut:
        network.cut_off(callee, 100.0)

    network.call(
        caller,
        callee,
        "ask",
        ask=lambda answer: answer("fine"),
        on_reply=lambda value: heard.append("reply"),
        on_failure=lambda: heard.append("failure"),
    )
    scheduler.run(until=lambda: False, horizon_s=50.0)

    assert heard == told


def test_the_calls_of_a_put_are_counted_one_by_one():
    """Each of them is a place where a crash may fall."""
    calls: list[str] = []
    store_on(disk(), calls=calls).put_if_absent("a", b"x")

    assert calls[-7:] == [
        "create_file", "write", "sync_file", "close", "link", "unlink", "sync_folder",
    ]  # fmt: skip
