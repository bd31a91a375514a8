"""Opening storage by its URL, probing it, and writing where the reply may get lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from store_rows import Relay, lose_reply, lose_request

from evalpipe.errors import ConfigError, StateError
from evalpipe.store.local import LocalStore
from evalpipe.store.objects import CONFLICTS, create, probe
from evalpipe.store.open import open_store
from evalpipe.store.remote import RemoteStore


class Overwriting(LocalStore):
    """A store without conditional writes."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


def test_paths_and_file_urls_open_folders(tmp_path: Path):
    """A path and its file:// URL are the same storage."""
    assert open_store(str(tmp_path / "a b")).url == str(tmp_path / "a b")
    assert open_store(f"file://{tmp_path}/a%20b").url == str(tmp_path / "a b")


def test_an_unknown_scheme_is_refused():
    """The message lists what would do."""
    with pytest.raises(ConfigError, match=r"no storage for ftp://.*s3"):
        open_store("ftp://host/x")


def test_plain_http_beyond_loopback_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Keys are not sent in clear unless the user says so."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example:9000")

    with pytest.raises(ConfigError, match="AWS_ALLOW_HTTP"):
        open_store("s3://bucket/run")

    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert isinstance(open_store("s3://bucket/run"), RemoteStore)


def test_probe_accepts_a_folder_and_leaves_nothing(store: LocalStore):
    """The probe's own object is removed."""
    probe(store)

    assert store.list("") == []


def test_probe_refuses_what_cannot_be_written(tmp_path: Path):
    """A file in the way is the user's mistake, told with the path."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(ConfigError, match=r"cannot write to .*file/run.*choose another folder"):
        probe(LocalStore(tmp_path / "file" / "run"))


def test_probe_refuses_a_store_without_conditional_writes(tmp_path: Path):
    """Two drivers could both win there."""
    with pytest.raises(StateError, match="conditional writes"):
        probe(Overwriting(tmp_path))


def test_create_finds_out_that_a_lost_reply_was_a_success(tmp_path: Path):
    """The object holds our bytes, so we wrote it."""
    relay = Relay(tmp_path)
    relay.on_write = lose_reply

    assert create(relay, "a", b"mine")
    assert create(relay, "a", b"mine")
    assert not create(relay, "a", b"other")


def test_create_passes_on_a_failure_that_left_nothing(tmp_path: Path):
    """The caller keeps its data and tries again."""
    relay = Relay(tmp_path)
    relay.on_write = lose_request

    with pytest.raises(TimeoutError, match="no answer"):
        create(relay, "a", b"mine")


def test_create_loses_to_others_even_when_the_reply_is_lost(tmp_path: Path):
    """The name was taken before we asked."""
    relay = Relay(tmp_path)
    relay.put("a", b"theirs")
    relay.on_write = lose_reply

    assert not create(relay, "a", b"mine")


class Conflicting(LocalStore):
    """Refuses writes over a conflict with nobody, as S3's 409 does, so many times."""

    def __init__(self, root: Path, *, times: int) -> None:
        super().__init__(root)
        self.left = times

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.left:
            self.left -= 1
            return False
        return super().put_if_absent(key, data)


def test_create_tries_again_after_a_conflict_that_left_nothing(tmp_path: Path):
    """A refusal over an object that is not there is no loss."""
    store = Conflicting(tmp_path, times=CONFLICTS - 1)

    assert create(store, "a", b"mine")


def test_create_gives_up_on_conflicts_without_end(tmp_path: Path):
    """As on any storage that fails: the caller keeps its data and tries later."""
    store = Conflicting(tmp_path, times=10**6)

    with pytest.raises(OSError, match="refused 8 times over conflicting writes") as raised:
        create(store, "a", b"mine")
    assert raised.value.errno == errno.EBUSY


def test_create_does_not_take_a_refused_write_for_a_lost_reply(tmp_path: Path):
    """Only a missing answer leaves open what happened; a write that failed is told, whatever lies there."""
    relay = Relay(tmp_path)

    def fail_after(write) -> bool:
        write()
        raise OSError(errno.EIO, "the folder could not be synced")

    relay.on_write = fail_after

    with pytest.raises(OSError, match="could not be synced"):
        create(relay, "a", b"mine")
