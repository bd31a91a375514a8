"""A file system in memory that keeps its word and no more: what was not fsynced may be gone or torn after a power cut.

A file's bytes are durable after an fsync of the file, its name after an fsync of the folder, each on its own, as POSIX
has it. Process death alone loses nothing. This is the hardware, shared by all; each process has its own `SimOs`.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path("/sim")  # exists always; the one run lies below it
FOLDER = ROOT / "run"
PROBE = "_probe"  # where the product looks whether a taken name stays


@dataclass(slots=True, eq=False)
class Inode:
    """One file or folder. synced: the bytes that survive a power cut."""

    is_folder: bool = False
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    links: int = 0


#: one step in a folder, whole or not at all: path -> what it names from then on, None for nothing
Change = dict[Path, Inode | None]


@dataclass(frozen=True, slots=True)
class Honesty:
    """Switches of the mutation check. keeps_fsync: an fsync does something.

    link_refuses: a taken name stays; without it the product's own probe is deceived too.
    """

    keeps_fsync: bool = True
    link_refuses: bool = True


class Disk:
    """Names and bytes, as they are now and as they would be after a power cut."""

    def __init__(self, rng: random.Random, *, now: Callable[[], float], honesty: Honesty | None = None) -> None:
        self._rng, self._now, self._honesty = rng, now, honesty or Honesty()
        self._names: dict[Path, Inode] = {}
        self._durable: dict[Path, Inode] = {}
        self._pending: dict[Path, list[Change]] = {}
        self._open: dict[int, Inode] = {}
        self._next_fd = 3
        self._born: dict[Path, float] = {}
        self._gone: dict[Path, float] = {}
        self.is_full = False
        self.torn = 0  # files that a power cut left other than they were

    # --- what a process may ask for ---

    def make_folder(self, path: Path) -> None:
        self._check_free(path)
        self._change(path.parent, {path: Inode(is_folder=True)})

    def create_file(self, path: Path) -> int:
        self._check_folder(path.parent)
        self._check_free(path)
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        inode = self._open[fd] = Inode(links=1)
        self._change(path.parent, {path: inode})
        return fd

    def write(self, fd: int, data: bytes) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._open[fd].data += data
        return len(data)

    def sync_file(self, fd: int) -> None:
        if self._honesty.keeps_fsync:
            inode = self._open[fd]
            inode.synced = bytes(inode.data)

    def close(self, fd: int) -> None:
        del self._open[fd]

    def link(self, source: Path, target: Path) -> None:
        inode = self._find(source)
        if self._honesty.link_refuses or target.parent.name == PROBE:
            self._check_free(target)
        inode.links += 1
        self._change(target.parent, {target: inode})

    def replace(self, source: Path, target: Path) -> None:
        inode = self._find(source)
        self._change(target.parent, {source: None, target: inode})

    def unlink(self, path: Path) -> None:
        self._find(path).links -= 1
        self._change(path.parent, {path: None})

    def sync_folder(self, path: Path) -> None:
        self._check_folder(path)
        if self._honesty.keeps_fsync:
            for change in self._pending.pop(path, []):
                self._apply(change, self._durable)

    def count_links(self, path: Path) -> int:
        return self._find(path).links

    def modified_at(self, path: Path) -> float:
        self._find(path)
        return self._born[path]

    def is_folder(self, path: Path) -> bool:
        return ROOT.is_relative_to(path) or (path in self._names and self._names[path].is_folder)

    def read(self, path: Path) -> bytes:
        inode = self._find(path)
        if inode.is_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return bytes(inode.data)

    def find_files(self, folder: Path, *, stale_s: float = 0.0) -> list[Path]:
        """Return the files below a folder; with stale_s as a cache of that age would say."""
        then = self._now() - stale_s
        here = [path for path, inode in self._names.items() if not inode.is_folder and self._born[path] <= then]
        here += [path for path, at in self._gone.items() if at > then >= self._born[path] and path not in self._names]
        return [path for path in here if path.is_relative_to(folder)]

    # --- what happens to it ---

    def cut_power(self) -> None:
        """Forget what was not durable; what was written without an fsync is kept, torn or gone, as chance has it."""
        for folder in sorted(self._pending):
            for change in self._survivors(self._pending[folder]):
                self._apply(change, self._durable)
        self._pending.clear()
        self._open.clear()
        self._durable = {path: inode for path, inode in self._durable.items() if self._is_attached(path)}
        self._names = dict(self._durable)
        for inode in dict.fromkeys(self._names.values()):
            self._settle(inode)

    def plant(self, path: Path, data: bytes) -> None:
        """Put a file there that none of our processes wrote."""
        inode = Inode(data=bytearray(data), synced=data, links=1)
        self._names[path] = self._durable[path] = inode
        self._born[path] = self._now()

    def _survivors(self, changes: list[Change]) -> list[Change]:
        """A journal keeps order (a beginning survives); without one each entry is on its own."""
        if self._rng.random() < 0.5:
            return changes[: self._rng.randint(0, len(changes))]
        return [change for change in changes if self._rng.random() < 0.5]

    def _settle(self, inode: Inode) -> None:
        if bytes(inode.data) != inode.synced:
            self.torn += 1
            lost = bytes(inode.data[len(inode.synced) :])
            tail = (b"", lost[: self._rng.randint(0, len(lost))], b"\0" * len(lost), lost)
            inode.data = bytearray(inode.synced + self._rng.choice(tail))
        inode.synced = bytes(inode.data)
        inode.links = sum(other is inode for other in self._names.values())

    def _is_attached(self, path: Path) -> bool:
        above = [parent for parent in path.parents if parent != ROOT and parent.is_relative_to(ROOT)]
        return all(parent in self._durable for parent in above)

    def _change(self, folder: Path, change: Change) -> None:
        self._pending.setdefault(folder, []).append(change)
        self._apply(change, self._names)
        for path, inode in change.items():
            (self._gone if inode is None else self._born)[path] = self._now()

    @staticmethod
    def _apply(change: Change, names: dict[Path, Inode]) -> None:
        for path, inode in change.items():
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode

    def _find(self, path: Path) -> Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._names[path]

    def _check_free(self, path: Path) -> None:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

    def _check_folder(self, path: Path) -> None:
        if not self.is_folder(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def files(self) -> Iterator[Path]:
        """Every file there is now, for the checker."""
        return (path for path, inode in self._names.items() if not inode.is_folder)
