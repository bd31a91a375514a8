"""A folder as an object store: whole or absent, private, durable before it is named."""

from __future__ import annotations

import errno
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from evalpipe.errors import Resumable, StateError
from evalpipe.store.local import LocalStore, OsCalls
from evalpipe.store.objects import NotFound, create, probe

EFFECTS = ("make_folder", "create_file", "write", "sync_file", "close", "link", "replace", "unlink", "sync_folder")


class Crash(BaseException):
    """The process is gone: nothing after it has any effect."""


class CountedCalls(OsCalls):
    """Run the real calls, remember their names, and die before or after the n-th."""

    def __init__(self, *, die_at: int = -1, after: bool = False) -> None:
        self.names: list[str] = []
        self._die_at = die_at
        self._after = after

    def __getattribute__(self, name: str):
        call = super().__getattribute__(name)
        return self._counted(name, call) if name in EFFECTS else call

    def _counted(self, name, call):
        def run(*args):
            number = len(self.names)
            self.names.append(name)
            if number > self._die_at >= 0 or (number == self._die_at and not self._after):
                raise Crash
            result = call(*args)
            if number == self._die_at:
                raise Crash
            return result

        return run


class ShortWrites(OsCalls):
    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data[:3])


class FailingWrites(OsCalls):
    """Take a few bytes, as a full disk does, then fail."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._has_room = True

    def write(self, fd: int, data: memoryview) -> int:
        if not self._has_room:
            raise OSError(self._code, os.strerror(self._code))
        self._has_room = False
        return os.write(fd, data[:2])


class FailingSync(OsCalls):
    def sync_file(self, fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class LostLinkReply(OsCalls):
    """NFS: the link is made, its reply gets lost, the repeated request says that the name exists."""

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        super().link(source, target)


def files_below(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def test_first_write_of_a_key_wins(store: LocalStore):
    """A second write of a key changes nothing and says so."""
    first = store.put_if_absent("a/b.json", b"one")
    second = store.put_if_absent("a/b.json", b"two")

    assert (first, second) == (True, False)
    assert store.get("a/b.json") == b"one"
    assert files_below(Path(store.url)) == ["a/b.json"]


def test_put_replaces_and_delete_removes(store: LocalStore):
    """Derived objects may be overwritten, and deleting one that is gone is no error."""
    store.put("_lease/1.json", b"1")
    store.put("_lease/1.json", b"2")
    replaced = store.get("_lease/1.json")
    store.delete("_lease/1.json")
    store.delete("_lease/1.json")

    assert replaced == b"2"
    with pytest.raises(NotFound, match=r"_lease/1\.json"):
        store.get("_lease/1.json")


def test_a_listing_is_by_prefix_sorted_and_without_leftovers(store: LocalStore):
    """Temporary files of a killed writer are no objects."""
    for key in ("log/2", "log/1", "log/deep/3", "other/1"):
        store.put(key, b"x")
    (Path(store.url) / "log" / ".tmp-dead").write_bytes(b"torn")

    assert store.list("log/") == ["log/1", "log/2", "log/deep/3"]
    assert store.list("log/d") == ["log/deep/3"]
    assert store.list("") == ["log/1", "log/2", "log/deep/3", "other/1"]
    assert store.list("nothing/") == []


def test_files_and_folders_are_private(store: LocalStore):
    """Answers are the user's alone: 0600 in 0700."""
    store.put_if_absent("a/b/c", b"x")

    root = Path(store.url)
    assert stat.S_IMODE((root / "a/b/c").stat().st_mode) == 0o600
    assert {stat.S_IMODE(p.stat().st_mode) for p in (root, root / "a", root / "a/b")} == {0o700}


@pytest.mark.parametrize(
    "key", ["", "/etc/x", "../x", "a/../../x", "a//b", ".hidden", "a/.tmp-1", "a\\b", "a\nb", "a/"]
)
def test_keys_that_climb_or_hide_are_refused(store: LocalStore, key: str):
    """No key reaches outside the root or names a temporary file."""
    with pytest.raises(StateError, match="object key"):
        store.put_if_absent(key, b"x")


def test_data_is_durable_before_its_name(tmp_path: Path):
    """The file is synced before it is linked, and the folder after."""
    calls = CountedCalls()
    store = LocalStore(tmp_path / "run", os_calls=calls)
    store.put_if_absent("a", b"first, makes the folder")
    calls.names.clear()

    store.put_if_absent("b", b"x")

    assert calls.names == ["create_file", "write", "sync_file", "close", "link", "unlink", "sync_folder"]


def test_each_new_folder_is_made_durable(tmp_path: Path):
    """A file in a folder whose own entry is lost would be lost with it."""
    calls = CountedCalls()

    LocalStore(tmp_path / "run", os_calls=calls).put_if_absent("a/b", b"x")

    assert calls.names[:4] == ["make_folder", "sync_folder"] * 2


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_call_leaves_the_object_whole_or_absent(tmp_path: Path, after: bool):
    """Stop before or after the n-th call, for every n: never torn, and the next process can write and read."""
    whole = CountedCalls()
    LocalStore(tmp_path / "whole", os_calls=whole).put_if_absent("a/b", b"payload")

    for n in range(len(whole.names)):
        root = tmp_path / f"crash-{n}"
        with pytest.raises(Crash):
            LocalStore(root, os_calls=CountedCalls(die_at=n, after=after)).put_if_absent("a/b", b"payload")
        survivor = LocalStore(root)
        found = survivor.list("")
        assert found in ([], ["a/b"]), n
        assert survivor.put_if_absent("a/b", b"later") is (found == []), n
        assert survivor.get("a/b") == (b"payload" if found else b"later"), n


def test_short_writes_are_continued(tmp_path: Path):
    """The system may take three bytes at a time."""
    store = LocalStore(tmp_path / "run", os_calls=ShortWrites())

    store.put_if_absent("a", b"0123456789")

    assert store.get("a") == b"0123456789"


def test_a_full_disk_at_the_start_passes(tmp_path: Path):
    """It is no mistake in the command: the same one goes on once there is room (exit 75)."""
    with pytest.raises(Resumable, match="the disk is full"):
        probe(LocalStore(tmp_path / "run", os_calls=FailingWrites(errno.ENOSPC)))


@pytest.mark.parametrize(
    ("calls", "code", "text"),
    [
        (FailingWrites(errno.ENOSPC), errno.ENOSPC, "cannot write seg/a .* the disk is full: free some space"),
        (FailingWrites(errno.EDQUOT), errno.EDQUOT, "quota"),
        (FailingSync(), errno.EIO, "cannot write seg/a"),
    ],
)
def test_a_failing_disk_leaves_nothing_and_says_why(tmp_path: Path, calls: OsCalls, code: int, text: str):
    """The half-written file is removed, the error keeps its errno, and the write can be tried again."""
    with pytest.raises(OSError, match=text) as raised:
        LocalStore(tmp_path / "run", os_calls=calls).put_if_absent("seg/a", b"payload")

    assert raised.value.errno == code
    assert files_below(tmp_path) == []
    assert LocalStore(tmp_path / "run").put_if_absent("seg/a", b"payload")


def test_a_lost_reply_to_link_is_a_success(tmp_path: Path):
    """On NFS the name may exist because we made it: the temporary file then has two links."""
    store = LocalStore(tmp_path / "run", os_calls=LostLinkReply())

    assert store.put_if_absent("a", b"x")


@pytest.mark.parametrize("planted", ["run", "run/_log", "run/_log/1"])
def test_a_symbolic_link_in_a_runs_folder_is_refused(tmp_path: Path, planted: str):
    """It would lead writes, or reads, to somewhere else: the folder, one inside it, or a file."""
    elsewhere = tmp_path / "elsewhere"
    LocalStore(elsewhere).put("_log/1", b"theirs")
    link = tmp_path / planted
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere / planted.removeprefix("run").lstrip("/"))
    store = LocalStore(tmp_path / "run")

    with pytest.raises(OSError) as raised:
        store.get("_log/1")
    assert raised.value.errno == errno.ELOOP
    if not planted.endswith("1"):
        with pytest.raises(OSError, match="is a symbolic link, and a run's folder holds none"):
            store.put_if_absent("_log/2", b"x")
    assert files_below(elsewhere) == ["_log/1"]


def test_a_link_above_the_run_is_the_users_business(tmp_path: Path):
    """runs/ may lie on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")

    LocalStore(tmp_path / "runs" / "run").put("a", b"x")

    assert files_below(tmp_path / "disk") == ["run/a"]


def test_leftovers_of_an_hour_are_swept(store: LocalStore):
    """Younger ones may still be written, whoever does it; objects stay."""
    store.put("seg/a", b"x")
    root = Path(store.url)
    for name, age_s in (("seg/.tmp-old", 3700.0), (".tmp-old", 4000.0), ("seg/.tmp-young", 3500.0), ("seg/a", 9000.0)):
        path = root / name
        path.touch()
        now = path.stat().st_mtime
        os.utime(path, (now - age_s, now - age_s))

    swept = store.sweep()

    assert swept == 2
    assert files_below(root) == ["seg/.tmp-young", "seg/a"]


def test_leftovers_of_a_dead_process_of_this_host_are_swept_at_once(store: LocalStore):
    """Its pid is gone; a living one's, one of another host and one of an older version are left their hour."""
    store.put("a", b"x")
    root, here = Path(store.url), socket.gethostname()
    dead, alive, away, plain = f".tmp-{here}-999999999-0", f".tmp-{here}-{os.getpid()}-0", ".tmp-away-9-0", ".tmp-0"
    for name in (dead, alive, away, plain):
        (root / name).touch()

    swept = store.sweep()

    assert swept == 1
    assert files_below(root) == sorted([alive, away, plain, "a"])


def test_a_writer_whose_temporary_file_was_swept_fails_and_writes_again(tmp_path: Path):
    """Stopped for an hour in the middle of a write: no half object, no success that is none."""

    class SleepsBeforeLink(OsCalls):
        def link(self, source: Path, target: Path) -> None:
            if not slept:
                slept.append(source)
                os.utime(source, (0.0, 0.0))
                assert LocalStore(tmp_path / "run").sweep() == 1
            super().link(source, target)

    slept: list[Path] = []
    store = LocalStore(tmp_path / "run", os_calls=SleepsBeforeLink())

    with pytest.raises(FileNotFoundError, match="cannot write a"):
        store.put_if_absent("a", b"x")

    assert store.put_if_absent("a", b"x")
    assert files_below(tmp_path) == ["run/a"]


class FailingFolderSync(OsCalls):
    """The folder of the first object cannot be made durable, once."""

    has_failed = False

    def sync_folder(self, path: Path) -> None:
        if path.name == "seg" and not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_folder(path)


def test_a_name_that_may_not_be_durable_is_not_reported_as_written(tmp_path: Path):
    """The link was made, the folder's fsync failed: a power cut could take it, so the caller must try again."""
    store = LocalStore(tmp_path / "run", os_calls=FailingFolderSync())

    with pytest.raises(OSError, match="cannot write seg/a"):
        create(store, "seg/a", b"nonce")

    assert create(store, "seg/a", b"nonce")


def test_twelve_threads_have_one_winner(store: LocalStore):
    """Whoever wins, the object holds the winner's bytes."""
    barrier = Barrier(12)

    def write(name: int) -> bool:
        barrier.wait()
        return store.put_if_absent("race", b"%d" % name)

    with ThreadPoolExecutor(12) as pool:
        won = list(pool.map(write, range(12)))

    assert won.count(True) == 1
    assert store.get("race") == b"%d" % won.index(True)
