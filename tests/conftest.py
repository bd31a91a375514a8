"""Guards and the shared Ray head: a test opens sockets or uses Ray only when its mark says so."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import KEY, KEY_ENV, QUICK, Said

from evalpipe import Run

_HEAVY = {"ray", "network", "chaos", "cluster", "engines"}


@pytest.fixture(autouse=True)
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse sockets without the mark `network` (or a heavier one), and addresses off this machine with it."""
    is_allowed = any(request.node.get_closest_marker(name) for name in _HEAVY)

    def check(address: Any) -> None:
        if not isinstance(address, tuple):
            return  # a Unix socket
        if not is_allowed:
            raise AssertionError(f"socket to {address} in a test without the mark `network`")
        if not _is_here(str(address[0])):
            raise AssertionError(f"socket to {address}: tests stay on loopback")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, _checked(getattr(socket.socket, name), check))


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not see the settings of whoever runs them."""
    for name in list(os.environ):
        if name.startswith(("EVALPIPE_", "OPENAI_")) and name != "EVALPIPE_REAL_BASE_URL":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def ray_head() -> Iterator[str]:
    """One Ray for the whole session; drivers in subprocesses join it by this address."""
    import ray

    from evalpipe.runtime import fleet

    os.environ[KEY_ENV] = KEY  # workers have the environment that Ray was started in, not the driver's
    fleet.connect(None)
    logging.getLogger("ray").setLevel(logging.ERROR)
    yield ray.get_runtime_context().gcs_address
    fleet.disconnect()


@pytest.fixture
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture
def run_it(ray_head: str, tmp_path: Path, repository: Path) -> Callable[..., Run]:
    """Return a function that runs logic-5k against the simulated server; arguments are dotted settings."""
    from evalpipe.api import run as run_config
    from evalpipe.config import load_config

    def run(limit: int = 100, show: Callable[[Any], None] = lambda progress: None, **settings: Any) -> Run:
        flags: dict[str, Any] = {
            "dataset.path": str(repository / "datasets/logic-5k.parquet"),
            "dataset.limit": limit,
            "endpoint.base_url": "sim://vllm",
            "sim.options": QUICK,
            "run.output": str(tmp_path / "runs"),
            "run.name": "run",
            "run.workers": 1,
            "run.flush_s": 0.5,
        }
        flags |= {name.replace("__", "."): value for name, value in settings.items()}
        return run_config(load_config(flags=flags, environ={}), show=show)

    return run


@pytest.fixture
def cli(ray_head: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Return a function that runs the command line in this process, beside the shared Ray."""
    from evalpipe.cli.main import main

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["evalpipe", *arguments])
        capsys.readouterr()
        began = time.monotonic()
        with pytest.raises(SystemExit) as stopped:
            main()
        seconds, said = time.monotonic() - began, capsys.readouterr()
        code = stopped.value.code
        return Said(code if isinstance(code, int) else 0, said.out, said.err, seconds)

    return call


def _checked(original: Callable[..., Any], check: Callable[[Any], None]) -> Callable[..., Any]:
    def checked(self: socket.socket, address: Any) -> Any:
        check(address)
        return original(self, address)

    return checked


def _is_here(host: str) -> bool:
    if host in ("", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or host == "0.0.0.0" or host in _own_addresses()


def _own_addresses() -> set[str]:
    """Addresses of this machine: Ray binds its own."""
    try:
        return {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return set()
