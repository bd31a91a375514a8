"""A bucket as an object store, against a real S3 server over loopback HTTP, in fair weather and in storms."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier, Event
from typing import Any

import pytest
from buckets import Action, Storm, s3_environment, s3_server
from store_rows import SPEC, SmallRun

from evalpipe.errors import ConfigError, Fenced, StateError
from evalpipe.records import Key
from evalpipe.store.compact import compact
from evalpipe.store.keys import KeySet
from evalpipe.store.log import Log, read_entry, read_state
from evalpipe.store.objects import NotFound, ObjectStore, create, probe
from evalpipe.store.open import open_store
from evalpipe.store.orphans import adopt_orphans
from evalpipe.store.remote import RemoteStore
from evalpipe.store.rows import read_all
from evalpipe.store.verify import verify

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in s3_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://bucket/runs/{uuid.uuid4().hex}")


@pytest.fixture
def storm(endpoint: str, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storm]:
    """What stands between us and the server from here on; it lets everything through until told otherwise."""
    with Storm(endpoint) as storm:
        monkeypatch.setenv("AWS_ENDPOINT_URL", storm.url)
        yield storm


def test_the_verbs_do_what_they_say(bucket: ObjectStore):
    """Conditional write, overwrite, read, list by prefix, delete."""
    written = [bucket.put_if_absent("log/1", b"one"), bucket.put_if_absent("log/1", b"two")]
    bucket.put("lease", b"1")
    bucket.put("lease", b"2")

    assert written == [True, False]
    assert (bucket.get("log/1"), bucket.get("lease")) == (b"one", b"2")
    assert (bucket.list(""), bucket.list("log/"), bucket.list("none/")) == (["lease", "log/1"], ["log/1"], [])
    bucket.delete("lease")
    bucket.delete("lease")
    with pytest.raises(NotFound, match="lease"):
        bucket.get("lease")


def test_twelve_threads_have_one_winner_in_a_bucket(bucket: ObjectStore):
    """Whoever wins, the object holds the winner's bytes."""
    barrier = Barrier(12)

    def write(name: int) -> bool:
        barrier.wait()
        return bucket.put_if_absent("race", b"%d" % name)

    with ThreadPoolExecutor(12) as pool:
        won = list(pool.map(write, range(12)))

    assert won.count(True) == 1
    assert bucket.get("race") == b"%d" % won.index(True)


def test_probe_accepts_the_bucket_and_refuses_a_missing_one(bucket: ObjectStore):
    """A bucket that does not exist is the user's mistake, in one line."""
    probe(bucket)

    with pytest.raises(ConfigError, match=r"cannot write to s3://absent/run: .*absent") as raised:
        probe(open_store("s3://absent/run"))
    assert "\n" not in str(raised.value)


def test_a_run_in_a_bucket_is_complete_and_sound(bucket: ObjectStore):
    """Segments, log, compaction and verification need nothing but the verbs."""
    run = SmallRun(bucket)
    run.log.commit([run.write(range(10)), run.write(range(10, 20), failed=[12])])

    compact(bucket, run.log)

    report = verify(bucket)
    assert (report.ok, report.failed, report.missing, report.problems) == (19, 1, 0, ())


TRIES = 3
QUICK: Any = {
    "max_retries": TRIES - 1,
    "retry_timeout": timedelta(seconds=5),
    "backoff": {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=5), "base": 2},
}


def plan(*actions: Action) -> Callable[[str], Action]:
    """Do these to one write after the other, then let everything through."""
    left = list(actions)
    return lambda method: left.pop(0) if left and method == "PUT" else "pass"


@pytest.mark.parametrize(
    "actions",
    [
        ["cut"],  # done, its answer lost; the client's own second try meets a 412
        ["cut"] * TRIES,
        ["late 500"],
        ["late 500"] * TRIES,
        [409] * 3,  # S3: another conditional write of this key is under way
        [503, "cut", 409],
    ],
)
def test_a_write_in_bad_weather_is_ours(storm: Storm, bucket: ObjectStore, actions: list[Action]):
    """Whatever came back, the bytes that lie there are the ones we wrote: create says yes, the log has one claim."""
    store = RemoteStore(bucket.url, retry=QUICK)
    storm.decide = plan(*actions)

    created = create(store, "mine", b"nonce")
    storm.decide = plan(*actions)
    epoch = Log(store).claim("spec")

    assert (created, epoch, read_state(bucket).version) == (True, 1, 1)
    assert bucket.get("mine") == b"nonce"


@pytest.mark.parametrize("actions", [[], ["cut"], [409, 503]])
def test_a_write_that_came_second_is_not_ours(storm: Storm, bucket: ObjectStore, actions: list[Action]):
    """In any weather."""
    bucket.put("taken", b"theirs")
    storm.decide = plan(*actions)

    assert not create(RemoteStore(bucket.url, retry=QUICK), "taken", b"nonce")


def test_storage_that_is_down_is_told_soon(storm: Storm, bucket: ObjectStore):
    """No answer to anything: an error to try again after, within seconds, that says what could not be written."""
    storm.decide = lambda method: "refuse"

    with pytest.raises(TimeoutError, match="mine in s3://bucket"):
        create(RemoteStore(bucket.url, retry=QUICK), "mine", b"nonce")


def test_a_store_without_conditional_writes_is_refused(storm: Storm, bucket: ObjectStore):
    """It takes the header and does not honour it: two drivers could both own the run."""
    storm.strips_conditions = True

    with pytest.raises(StateError, match="does not honour conditional writes"):
        probe(RemoteStore(bucket.url, retry=QUICK))


def test_large_files_are_conditional_too(bucket: ObjectStore):
    """Above 5 MiB clients like to upload in pieces, which has no condition; ours must not."""
    data = random.Random(1).randbytes(9 * 2**20)

    written = [bucket.put_if_absent("large", data), bucket.put_if_absent("large", b"other")]

    assert written == [True, False]
    assert bucket.get("large") == data


def patiently(do: Callable[[], object], *, tries: int = 30) -> object:
    """Call again after storage failed, as worker and driver do."""
    for _ in range(tries):
        try:
            return do()
        except OSError as error:
            failure = error
    raise failure


def test_a_run_through_a_storm_is_complete_and_exact(storm: Storm, bucket: ObjectStore):
    """Two drivers one after the other, every third request harmed: all rows once, the log in order, parts made."""
    rng = random.Random(7)
    kinds: list[Action] = ["cut", "late 500", 500, 503, 409]
    run = SmallRun(RemoteStore(bucket.url, retry=QUICK))
    storm.decide = lambda method: rng.choice(kinds[: 5 if method == "PUT" else 4]) if rng.random() < 0.35 else "pass"

    for start in (0, 5):
        info = patiently(lambda start=start: write_again(run, start))
        patiently(lambda info=info: run.log.commit([info]))
    patiently(lambda: write_again(run, 10))  # never committed: an orphan
    successor = Log(run.store)
    patiently(lambda: successor.claim(SPEC.sha256))
    patiently(lambda: adopt_orphans(run.store, successor))
    run.log = successor
    info = patiently(lambda: write_again(run, 15))
    patiently(lambda: successor.commit([info]))
    patiently(lambda: compact(run.store, successor))
    storm.decide = lambda method: "pass"

    report = verify(bucket)
    assert (report.ok, report.missing, report.problems, report.orphans) == (20, 0, (), ())
    assert read_all(bucket, read_state(bucket))["item_index"].to_pylist() == list(range(20))
    assert storm.harmed > 15


def write_again(run: SmallRun, start: int) -> object:
    """Write five rows under the number of their start, the same file at every try."""
    run._seq = iter([start])
    return run.write(range(start, start + 5))


def test_of_two_drivers_that_start_together_one_works(bucket: ObjectStore):
    """Eight times: one claim wins the epoch, the other driver is told to stop and has written nothing after it."""
    SmallRun(bucket)
    barrier = Barrier(2)

    def start(after: int) -> Log | None:
        log = Log(RemoteStore(bucket.url, retry=QUICK))
        barrier.wait()
        try:
            log.claim(SPEC.sha256, after=after)
        except Fenced:
            return None
        return log

    for epoch in range(1, 9):
        with ThreadPoolExecutor(2) as pool:
            logs = [log for log in pool.map(start, [epoch, epoch]) if log is not None]
        state = read_state(bucket)
        assert [(log.epoch, log.writer) for log in logs] == [(epoch + 1, state.writer)]
        assert (state.epoch, state.version) == (epoch + 1, epoch + 1)


class Announcing(RemoteStore):
    """Says when it is about to write."""

    def __init__(self, url: str) -> None:
        super().__init__(url, retry=QUICK)
        self.is_about_to_write = Event()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.is_about_to_write.set()
        return super().put_if_absent(key, data)


def test_a_takeover_stops_the_driver_that_was_there(bucket: ObjectStore):
    """It commits at the very moments at which the newcomer claims: it is stopped, and what it had committed stays."""
    run = SmallRun(bucket)
    info = run.write([0])
    newcomer = Announcing(bucket.url)

    def work() -> int:
        for number in range(1000):
            assert newcomer.is_about_to_write.wait(20.0)
            newcomer.is_about_to_write.clear()
            key = KeySet.from_keys([Key(number % SPEC.items, number // SPEC.items)])
            try:
                run.log.commit([replace(info, path=f"segments/{number}", ok=key)])
            except Fenced:
                return number
        raise AssertionError("nobody took over")

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(work)
        second = Log(newcomer)
        second.claim(SPEC.sha256)
        newcomer.is_about_to_write.set()
        committed = first.result()

    entries = [read_entry(bucket, version + 1) for version in range(second.replay().version)]
    assert second.state.counts.ok == committed
    assert {(entry.epoch, entry.writer) for entry in entries if entry} == {(1, run.log.writer), (2, second.writer)}
