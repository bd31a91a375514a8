"""Drivers as processes of their own that can be killed, and runs that several of them work on one after another.

A driver here is a fork of a process that has imported what a driver imports (5 s of a start on two cores) and nothing
else: from `main()` on it is the command line, with the same arguments each time.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

from chaos.watching import PATIENCE_S

#: what a driver imports sooner or later
IMPORTS = (
    "__main__",  # else each child imports pytest
    "datasets",
    "openai",
    "evalpipe.cli.main",
    "evalpipe.cli.run",
    "evalpipe.cli.display",
    "evalpipe.runtime.session",
    "evalpipe.runtime.launch",
)


class Driver:
    """One driver process; what it prints is appended to the file `said`. host: a name to have instead of the real."""

    def __init__(
        self, arguments: Sequence[str], *, said: Path, environment: Mapping[str, str], host: str | None = None
    ) -> None:
        process = _forks().Process(target=_run, args=(list(arguments), str(said), dict(environment), host))
        process.start()
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit code. Raises TimeoutError."""
        self._process.join(within_s)
        if self._process.exitcode is None:
            raise TimeoutError(f"the driver (pid {self.pid}) still runs after {within_s:g} s")
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone; one that is stopped dies too."""
        if not self.is_over:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self.wait(10)


def warm_up() -> None:
    """Start the process that drivers are forked from, and wait until it has imported."""
    nothing = _forks().Process(target=os.getpid)
    nothing.start()
    nothing.join()


def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTS))
    return context


def _run(arguments: list[str], said: str, environment: dict[str, str], host: str | None) -> None:
    """Become `evalpipe ARGUMENTS`; runs in the fork."""
    os.setsid()  # out of reach of the terminal's signals
    log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["evalpipe", *arguments]
    if host is not None:
        socket.gethostname = lambda: host
    from evalpipe.cli.main import main

    try:
        main()
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()  # a fork of multiprocessing leaves without them
