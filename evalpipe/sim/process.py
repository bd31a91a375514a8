"""The simulated server as a child process beside a run or a test."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from evalpipe.errors import ConfigError, StateError
from evalpipe.sim.misbehave import FaultPlan, Shares
from evalpipe.sim.profiles import profile

_KEY_ENV = "EVALPIPE_SIM_API_KEY"
_START_TIMEOUT_S = 20.0  # half a second as a rule; a loaded machine imports slowly
_STOP_TIMEOUT_S = 5.0


class SimServer:
    """The simulated server as a child process: started when built, ended by `stop` or with the block.

    Ends with this process too, however that ends. Arguments as `serve`; options: overrides of the profile's numbers.
    Raises ConfigError at once for an unknown profile, option or fault, or when the child refuses its settings.
    """

    def __init__(
        self,
        profile_name: str,
        *,
        options: Mapping[str, Any] | None = None,
        port: int = 0,
        ledger: str | Path | None = None,
        dataset: str | Path | None = None,
        accuracy: float = 0.7,
        seed: int = 0,
        faults: Shares | None = None,
        api_key: str | None = None,
        model: str = "sim",
    ) -> None:
        profile(profile_name, **(options or {}))
        FaultPlan(faults or {}, seed=seed)
        arguments: dict[str, Any] = {
            "profile": profile_name,
            "options": json.dumps(dict(options or {})),
            "port": port,
            "ledger": ledger,
            "dataset": dataset,
            "accuracy": accuracy,
            "seed": seed,
            "faults": json.dumps(dict(faults or {})),
            "parent-pid": os.getpid(),
            "model": model,
            "api-key-env": None if api_key is None else _KEY_ENV,
        }
        command = [sys.executable, "-m", "evalpipe.sim.server", "--stop-on-eof"]
        command += [f"--{name}={value}" for name, value in arguments.items() if value is not None]
        environment = dict(os.environ) if api_key is None else {**os.environ, _KEY_ENV: api_key}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, env=environment)
        ready = self._await_ready()
        self.port: int = ready["port"]
        self.base_url: str = ready["base_url"]
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the child, negative for a signal; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End the child, by force after five seconds. May be called again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.poll() is None:
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> SimServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _await_ready(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline() if select.select([stdout], [], [], _START_TIMEOUT_S)[0] else b""
        if line:
            ready: dict[str, Any] = json.loads(line)
            return ready
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self.stop()
        reason = said[-1] if said else f"no ready line within {_START_TIMEOUT_S:g} s"
        if code == 2:
            raise ConfigError(reason.removeprefix("error: "))
        raise StateError(f"the simulated server did not start (exit {code}): {reason}")
