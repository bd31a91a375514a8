"""A folder as an object store: an object is there whole and durable, or not at all.

Write a private temporary file, fsync it, link it to its name (which fails if the name is taken), fsync the folder.
Files are 0600 in 0700 folders. Every call to the operating system goes through `OsCalls`, so that a simulation can
stop after any of them, or forget what was not fsynced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from evalpipe.store.objects import NotFound, check_key

TEMP_PREFIX = ".tmp-"  # left behind only by a kill; no key starts with a dot, so nothing reads them

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

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def find_files(self, folder: Path) -> list[Path]:
        """Return every file below the folder; none when the folder does not exist."""
        return [Path(where, name) for where, _, names in os.walk(folder) for name in names]


class LocalStore:
    """Objects as files below one root folder, which is made at the first write."""

    def __init__(self, root: Path | str, *, os_calls: OsCalls | None = None) -> None:
        self._root = Path(root).absolute()
        self._os = os_calls or OsCalls()
        self._ready: set[Path] = set()

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
        files = (path for path in self._os.find_files(folder) if not path.name.startswith(TEMP_PREFIX))
        keys = (path.relative_to(self._root).as_posix() for path in files)
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Not made durable: only what the log no longer names is ever deleted."""
        with contextlib.suppress(*_MISSING), self._explained("delete", key):
            self._os.unlink(self._path(key))

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextlib.contextmanager
    def _filled_temp(self, target: Path, data: bytes) -> Iterator[Path]:
        """Lend a durable temporary file beside target; afterwards it is gone and the folder is durable."""
        self._prepare(target.parent)
        temp = target.with_name(f"{TEMP_PREFIX}{uuid.uuid4().hex}")
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
