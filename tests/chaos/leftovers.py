"""What a session of ours leaves on the machine: processes, listening sockets, temporary files (invariant I8).

Ours is what inherited the mark from this process's environment; other people's Rays on the machine are none of our
business.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARK_ENV = "CHAOS_SESSION"
_LISTEN = "0A"  # state of a TCP socket in /proc/net/tcp


def mark_session() -> None:
    """Mark all processes that this one starts from now on."""
    os.environ.setdefault(MARK_ENV, uuid.uuid4().hex)


@dataclass(frozen=True)
class Presence:
    """processes: pid -> command line. sockets: listening ones, (pid, inode)."""

    processes: dict[int, str]
    sockets: frozenset[tuple[int, str]]

    def since(self, before: Presence) -> Presence:
        """Return what is here and was not before."""
        new = {pid: line for pid, line in self.processes.items() if pid not in before.processes}
        return Presence(new, self.sockets - before.sockets)

    def __bool__(self) -> bool:
        return bool(self.processes or self.sockets)


def presence() -> Presence:
    """Look at what is ours now."""
    ours = dict(_ours())
    inodes = set(_listening())
    sockets = {(pid, inode) for pid in (*ours, os.getpid()) for inode in _sockets_of(pid) if inode in inodes}
    return Presence({pid: _readable(line) for pid, line in ours.items()}, frozenset(sockets))


def find_processes(name: str, *, children_of: int | None = None) -> list[int]:
    """Return pids of ours whose title begins with name, for instance ray::WorkerActor; of one parent where given."""
    found = [pid for pid, line in _ours() if line.startswith(name.encode())]
    return [pid for pid in found if children_of is None or parent_of(pid) == children_of]


def parent_of(pid: int) -> int:
    """Return the parent's pid, 0 when the process is gone."""
    stat = _read(Path(f"/proc/{pid}/stat"))
    return int(stat.rpartition(b")")[2].split()[1]) if stat else 0


def is_stopped(pid: int) -> bool:
    """Say whether the process stands still after SIGSTOP."""
    return _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()[:1] == [b"T"]


def temporary_files(folder: Path) -> list[Path]:
    """Return the store's temporary files below a folder."""
    return sorted(folder.rglob(".tmp-*"))


def age(files: Iterable[Path], *, by_s: float) -> None:
    """Let files look older than they are."""
    for path in files:
        then = path.stat().st_mtime - by_s
        os.utime(path, (then, then))


def _ours() -> Iterator[tuple[int, bytes]]:
    mark = f"{MARK_ENV}={os.environ[MARK_ENV]}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if pid != os.getpid() and mark in _read(path / "environ").split(b"\0"):
            line = _read(path / "cmdline")
            if line:  # a zombie has none: its parent has not looked yet
                yield pid, line


def _listening() -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        for line in _read(Path("/proc/net") / name).decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                yield fields[9]


def _sockets_of(pid: int) -> Iterator[str]:
    for link in _entries(Path(f"/proc/{pid}/fd")):
        try:
            target = str(link.readlink())
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it ended meanwhile
        return []


def _readable(line: bytes) -> str:
    return line.replace(b"\0", b" ").decode(errors="replace").strip()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
