"""The operating system as one simulated process sees it: the store's os calls on the shared disk, with its faults."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simulation.disk import Disk

from evalpipe.store.local import OsCalls


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Chances, each of one call. stale_s: the age of a stale listing."""

    short_write: float = 0.0
    failed_sync: float = 0.0
    stale_list: float = 0.0
    stale_s: float = 0.0


class SimOs(OsCalls):
    """The operating system as one process sees it.

    enter: called with the name of the call and its path before every call; it may wait, and raises when the process is
    dead. count: told of each fault that was made.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        enter: Callable[[str, str], None],
        count: Callable[[str], None],
        faults: DiskFaults,
        rng: random.Random,
    ) -> None:
        self._disk, self._enter, self._count, self._faults, self._rng = disk, enter, count, faults, rng

    def make_folder(self, path: Path) -> None:
        self._enter("make_folder", path.name)
        self._disk.make_folder(path)

    def create_file(self, path: Path) -> int:
        self._enter("create_file", path.name)
        return self._disk.create_file(path)

    def write(self, fd: int, data: memoryview) -> int:
        self._enter("write", str(len(data)))
        if len(data) > 1 and self._happens("short_write", self._faults.short_write):
            data = data[: self._rng.randint(1, len(data) - 1)]
        if self._disk.is_full:
            self._count("disk_full")
        return self._disk.write(fd, bytes(data))

    def sync_file(self, fd: int) -> None:
        self._enter("sync_file", "")
        if self._happens("failed_sync", self._faults.failed_sync):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.sync_file(fd)

    def close(self, fd: int) -> None:
        self._enter("close", "")
        self._disk.close(fd)

    def link(self, source: Path, target: Path) -> None:
        self._enter("link", target.name)
        self._disk.link(source, target)

    def count_links(self, path: Path) -> int:
        self._enter("count_links", path.name)
        return self._disk.count_links(path)

    def replace(self, source: Path, target: Path) -> None:
        self._enter("replace", target.name)
        self._disk.replace(source, target)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path.name)
        self._disk.unlink(path)

    def sync_folder(self, path: Path) -> None:
        self._enter("sync_folder", path.name)
        if self._happens("failed_sync", self._faults.failed_sync):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.sync_folder(path)

    def is_folder(self, path: Path) -> bool:
        self._enter("is_folder", path.name)
        return self._disk.is_folder(path)

    def is_link(self, path: Path) -> bool:
        return False

    def modified_at(self, path: Path) -> float:
        self._enter("modified_at", path.name)
        return self._disk.modified_at(path)

    def read(self, path: Path) -> bytes:
        self._enter("read", path.name)
        return self._disk.read(path)

    def find_files(self, folder: Path) -> list[Path]:
        self._enter("find_files", folder.name)
        is_stale = self._happens("stale_list", self._faults.stale_list)
        return self._disk.find_files(folder, stale_s=self._faults.stale_s if is_stale else 0.0)

    def _happens(self, name: str, chance: float) -> bool:
        if not chance or self._rng.random() >= chance:
            return False
        self._count(name)
        return True
