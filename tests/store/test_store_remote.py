"""A bucket as an object store, against a real S3 server process over loopback HTTP."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from urllib.parse import urlsplit

import pytest
from store_rows import SmallRun

from evalpipe.errors import ConfigError
from evalpipe.store.compact import compact
from evalpipe.store.log import Log
from evalpipe.store.objects import NotFound, ObjectStore, create, probe
from evalpipe.store.open import open_store
from evalpipe.store.verify import verify

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # a second to import: only for those who run these tests

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=x/1/us-east-1/s3/x"})
    assert connection.getresponse().read() is not None
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return open_store(f"s3://bucket/runs/{uuid.uuid4().hex}")


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


class DropsOneReply:
    """A TCP relay before the server that passes requests on and cuts the connection instead of the first answer."""

    def __init__(self, endpoint: str) -> None:
        self._target = urlsplit(endpoint)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cuts = 1
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                with client, socket.create_connection((self._target.hostname, self._target.port)) as server:
                    self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while readable := select.select([client, server], [], [], 5.0)[0]:
            data = readable[0].recv(65536)
            if not data or (readable[0] is server and self.cuts):
                self.cuts -= bool(data)
                return
            (client if readable[0] is server else server).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


def test_a_write_whose_answer_is_cut_off_is_ours(endpoint: str, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch):
    """The server wrote it and the connection broke: the writer finds its own bytes and goes on."""
    relay = DropsOneReply(endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{relay.port}")
    log = Log(open_store(bucket.url))

    created = create(open_store(bucket.url), "mine", b"nonce")
    epoch = log.claim("spec")
    relay.close()

    assert (created, relay.cuts, epoch) == (True, 0, 1)
    assert bucket.get("mine") == b"nonce"
