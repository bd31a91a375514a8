"""Several hosts on one machine: network namespaces on two bridges, and nothing of it in the machine's own network.

Every host has `lan`, where Ray talks, and `svc`, where the model server is. A cable of one can be pulled while the
other stays. Needs root and the command `ip` (Debian package iproute2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

LAN, SVC = "lan", "svc"
SUBNETS = {LAN: "10.77.0", SVC: "10.78.0"}  # inside the namespaces only: no route leads in or out


def why_not() -> str:
    """Say what is missing to make network namespaces here, "" if nothing is."""
    if os.geteuid() != 0:
        return f"network namespaces need root, this is user {os.geteuid()}; run `sudo make test-cluster`"
    if shutil.which("ip") is None:
        return "the command `ip` is missing: apt install iproute2"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"the kernel refuses network namespaces: {tried.stderr.strip()}"


def ip(*arguments: str) -> str:
    """Run `ip`; raises CalledProcessError with what it said."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Network:
    """The bridges in a namespace of their own, and the hosts that were joined to them; `close` ends all of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spaces: list[str] = []
        self._switch = self._add_space("sw")
        for bridge in SUBNETS:
            ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
            ip("-n", self._switch, "link", "set", bridge, "up")

    def add_host(self, host: str, number: int, *, bridges: tuple[str, ...] = (LAN, SVC)) -> None:
        """Join a host; its addresses end with `number`."""
        space = self._add_space(host)
        for bridge in bridges:
            device = f"to-{bridge}"
            port = ("peer", "name", f"{bridge}-{host}", "netns", self._switch)
            ip("link", "add", device, "netns", space, "type", "veth", *port)
            ip("-n", self._switch, "link", "set", f"{bridge}-{host}", "master", bridge, "up")
            ip("-n", space, "address", "add", f"{SUBNETS[bridge]}.{number}/24", "dev", device)
            ip("-n", space, "link", "set", device, "up")

    def inside(self, host: str) -> list[str]:
        """Words to put before a command that is to run on a host."""
        return ["ip", "netns", "exec", f"{self._name}-{host}"]

    def pids(self, host: str) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", f"{self._name}-{host}").split()]

    @contextlib.contextmanager
    def unplugged(self, host: str, bridge: str) -> Iterator[None]:
        """Pull one cable at the switch: the host keeps its address and hears nothing, as with a real one."""
        port = f"{bridge}-{host}"
        ip("-n", self._switch, "link", "set", port, "down")
        try:
            yield
        finally:
            ip("-n", self._switch, "link", "set", port, "up")

    def close(self) -> None:
        """Kill what still runs in the namespaces, by pid, and remove them."""
        for space in self._spaces:
            _kill_all(space)
            ip("netns", "delete", space)
        self._spaces.clear()

    def _add_space(self, host: str) -> str:
        space = f"{self._name}-{host}"
        ip("netns", "add", space)
        self._spaces.append(space)
        ip("-n", space, "link", "set", "lo", "up")
        return space


def command_of(pid: int) -> str:
    """Return the command line of a process, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _kill_all(space: str, *, within_s: float = 10.0) -> None:
    """A namespace that is deleted with processes in it lives on, and they in it."""
    give_up_at = time.monotonic() + within_s
    while (pids := ip("netns", "pids", space).split()) and time.monotonic() < give_up_at:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)  # the kernel tells nobody when the last process has left
