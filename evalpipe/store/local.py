"""A folder as an object store: an object is there whole and durable, or not at all.

Write a private temporary file, fsync it, link it to its name (which fails if the name is taken), fsync the folder.
Files are 0600 in 0700 folders. Every call to the operating system goes through `OsCalls`, so that a simulation can
stop after any of them, or forget what was not fsynced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from evalpipe.store.objects import NotFound, check_key
from evalpipe.store.process import is_process

TEMP_PREFIX = ".tmp-"  # left behind only by a kill; no key starts with a dot, so nothing reads them
TEMP_AGE_S = 3600.0  # of a writer elsewhere: a write takes milliseconds; one that slept longer fails and writes again

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "choose a folder you may write to",
    errno.ENOTDIR: "a part of the path is a file: choose another folder",
}
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class OsCalls:
    """The operating system as LocalStore sees it: one method, one call whose effect a crash may cut off."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def create_file(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def sync_file(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def count_links(self, path: Path) -> int:
        return path.stat().st_nlink

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def is_link(self, path: Path) -> bool:
        return path.is_symlink()

    def modified_at(self, path: Path) -> float:
        """Return seconds by the clock of the file system."""
        return path.stat(follow_symlinks=False).st_mtime

    def read(self, path: Path) -> bytes:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
            return file.read()

    def find_files(self, folder: Path) -> list[Path]:
        """Return every file below the folder; none when the folder does not exist."""
        return [Path(where, name) for where, _, names in os.walk(folder) for name in names]


class LocalStore:
    """Objects as files below one root folder, which is made at the first write."""

    def __init__(self, root: Path | str, *, os_calls: OsCalls | None = None) -> None:
        self._root = Path(root).absolute()
        self._os = os_calls or OsCalls()
        self._ready: set[Path] = set()
        self._own: set[Path] = set()

    @property
    def url(self) -> str:
        return str(self._root)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See ObjectStore. Raises OSError with errno (ENOSPC, EACCES, ..) when the disk refuses."""
        target = self._path(key)
        with self._explained("write", key), self._filled_temp(target, data) as temp:
            return self._link(temp, target)

    def put(self, key: str, data: bytes) -> None:
        target = self._path(key)
        with self._explained("write", key), self._filled_temp(target, data) as temp:
            self._os.replace(temp, target)

    def get(self, key: str) -> bytes:
        try:
            with self._explained("read", key):
                return self._os.read(self._path(key))
        except _MISSING:
            raise NotFound(f"no object {key} in {self.url}") from None

    def list(self, prefix: str) -> list[str]:
        folder = self._root / prefix.rpartition("/")[0]
        above = len(str(self._root)) + 1  # cut off as text: `relative_to` takes 10 us a path
        names = (str(path)[above:] for path in self._os.find_files(folder) if not path.name.startswith(TEMP_PREFIX))
        return sorted(key for key in names if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Not made durable: only what the log no longer names is ever deleted."""
        with contextlib.suppress(*_MISSING), self._explained("delete", key):
            self._os.unlink(self._path(key))

    def sweep(self) -> int:
        """See ObjectStore. Of a dead process of this host also what is younger.

        Ages are taken from the file system's own clock, of a fresh file beside the old ones.
        """
        left = [path for path in self._os.find_files(self._root) if path.name.startswith(TEMP_PREFIX)]
        if not left:
            return 0
        with self._explained("sweep", TEMP_PREFIX), self._filled_temp(self._root / "now", b"") as fresh:
            now = self._os.modified_at(fresh)
            return sum(self._discard(path, older_than=now - TEMP_AGE_S) for path in left)

    def _discard(self, path: Path, *, older_than: float) -> bool:
        try:
            if not _is_of_the_dead(path) and self._os.modified_at(path) > older_than:
                return False
            self._os.unlink(path)
        except FileNotFoundError:  # its writer has just finished
            return False
        return True

    def _path(self, key: str) -> Path:
        path = self._root / check_key(key)
        self._refuse_links(path.parent)
        return path

    def _refuse_links(self, folder: Path) -> None:
        """Raise OSError (ELOOP) where the run's folder, or one in it, is a symbolic link: it would lead elsewhere."""
        if folder in self._own:
            return
        for path in (folder, *folder.parents):
            if path.is_relative_to(self._root) and self._os.is_link(path):
                text = f"{path} is a symbolic link, and a run's folder holds none: give the folder it leads to"
                raise OSError(errno.ELOOP, text)
        self._own.add(folder)

    @contextlib.contextmanager
    def _filled_temp(self, target: Path, data: bytes) -> Iterator[Path]:
        """Lend a durable temporary file beside target; afterwards it is gone and the folder is durable."""
        self._prepare(target.parent)
        temp = target.with_name(f"{_temp_stem()}{os.getpid()}-{uuid.uuid4().hex}")
        fd = self._os.create_file(temp)
        try:
            try:
                self._write_all(fd, data)
                # never tried again on the same file: after a failed fsync the kernel calls its lost pages clean
                self._os.sync_file(fd)
            finally:
                self._os.close(fd)
            yield temp
        finally:
            with contextlib.suppress(FileNotFoundError):  # replace has moved it
                self._os.unlink(temp)
        # also when the name was taken: what its writer left there becomes durable before anyone builds on it
        self._os.sync_folder(target.parent)

    def _write_all(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # a nearly full disk takes a part without an error
            written = self._os.write(fd, rest)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[written:]

    def _link(self, temp: Path, target: Path) -> bool:
        try:
            self._os.link(temp, target)
        except FileExistsError:
            # NFS repeats a request whose reply was lost and then says EEXIST; two links mean that the first one worked
            return self._os.count_links(temp) == 2
        return True

    def _prepare(self, folder: Path) -> None:
        """Make the folder and those above it, and the entry of each durable; once per folder and process."""
        if folder in self._ready:
            return
        for path in (*reversed(folder.parents), folder):
            is_ours = path.is_relative_to(self._root)
            if not is_ours and self._os.is_folder(path):
                continue
            with contextlib.suppress(FileExistsError):
                self._os.make_folder(path)
            # the folder above the root may be closed to us; then its owner answers for it
            with contextlib.suppress(PermissionError):
                self._os.sync_folder(path.parent)
        self._ready.add(folder)

    @contextlib.contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            code = error.errno or errno.EIO
            remedy = _REMEDIES.get(code)
            text = f"cannot {verb} {key} in {self.url}: {error.strerror or error}" + (f"; {remedy}" if remedy else "")
            raise OSError(code, text) from error  # errno picks the subclass: PermissionError and so on


def _temp_stem() -> str:
    return f"{TEMP_PREFIX}{socket.gethostname()}-"


def _is_of_the_dead(path: Path) -> bool:
    """Say whether the temporary file was made by a process of this host that is gone."""
    stem = _temp_stem()
    pid = path.name.removeprefix(stem).partition("-")[0]
    return path.name.startswith(stem) and pid.isdecimal() and not is_process(int(pid))
