"""What runs on the hosts: a Ray node on each of three, the simulated server, and a driver on the head."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.network import LAN, SUBNETS, SVC, Network, command_of

HEAD, SECOND, THIRD = HOSTS = ("n1", "n2", "n3")
SERVER, SERVER_NUMBER, SERVER_PORT, GCS_PORT = "server", 100, 8000, 6379
NODE_STARTS_WITHIN_S = 240.0  # ten seconds as a rule; a loaded machine imports slowly


@dataclass(frozen=True)
class Settings:
    """What a run of the experiment sends where. The delay of the server is what bounds it, not this machine's cores.

    latency_s: mean of a request's. At 2 x permits items in hand, a worker that is cut off has work for 18 s, longer
    than its lease: it stops because of that, not for want of items.
    """

    items: int = 5000
    limit: int = 450
    latency_s: float = 9.0
    spread: float = 0.2  # sigma of the lognormal work

    @property
    def server_options(self) -> dict[str, float]:
        far = 10**6  # no knee: any number may be in flight
        knees = {"reject_above": far, "flat_until": far, "safe": far}
        return {"base_s": self.latency_s, "sigma": self.spread, "chunk_s": 1.0, **knees}


@dataclass
class Hosts:
    """Three Ray nodes with token authentication, one CPU each, so that one worker sits on each; and the server."""

    network: Network
    folder: Path
    repository: Path
    settings: Settings
    _nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    @property
    def base_url(self) -> str:
        return f"http://{SUBNETS[SVC]}.{SERVER_NUMBER}:{SERVER_PORT}/v1"

    def start(self) -> None:
        """Join all hosts, start the server and one Ray node after the other."""
        for number, host in enumerate(HOSTS, 1):
            self.network.add_host(host, number)
        self.network.add_host(SERVER, SERVER_NUMBER, bridges=(SVC,))
        self._start_server()
        for host in HOSTS:
            self.start_node(host)

    def start_node(self, host: str) -> None:
        """Run `ray start --block` there and wait until it says that it is up."""
        number = HOSTS.index(host) + 1
        join = [f"--address={SUBNETS[LAN]}.1:{GCS_PORT}"]
        if host == HEAD:
            join = ["--head", f"--port={GCS_PORT}", "--include-dashboard=false"]
        command = [
            *(str(Path(sys.executable).with_name("ray")), "start", "--block", *join),
            *(f"--node-ip-address={SUBNETS[LAN]}.{number}", "--num-cpus=1", "--object-store-memory=100000000"),
            f"--temp-dir={self.folder}/{host}",  # as on another machine; two nodes in one session folder trip
        ]
        log = self.folder / f"{host}.log"
        self._nodes[host] = self._popen(host, command, log)
        self._await_line(log, "Ray runtime started", self._nodes[host])

    def kill_raylet(self, host: str) -> None:
        """kill -9 of the one process that makes a host a Ray node; `ray start --block` reaps it."""
        raylets = [pid for pid in self.network.pids(host) if "/raylet/raylet" in command_of(pid).split(" ")[0]]
        assert len(raylets) == 1, raylets
        os.kill(raylets[0], signal.SIGKILL)

    def workers_on(self, host: str) -> int:
        return sum(command_of(pid).startswith("ray::WorkerActor") for pid in self.network.pids(host))

    def start_driver(self, name: str) -> subprocess.Popen[bytes]:
        settings = self.settings
        command = [
            *(sys.executable, "-m", "evalpipe.cli.main", "run", "--base-url", self.base_url, "--model", "sim"),
            *("--dataset", str(self.repository / "datasets/logic-5k.parquet"), "--limit", str(settings.items)),
            *("--concurrency", str(settings.limit), "--workers", str(len(HOSTS)), "--name", name),
            *("-o", str(self.runs), "--display", "plain", "--set", "endpoint.trace_header=true"),
        ]
        driver = self._popen(HEAD, command, self.folder / f"{name}.log")
        self._others.append(driver)
        return driver

    def close(self) -> None:
        """End all; the namespaces' own sweep comes after it."""
        for process in [*self._others, *reversed(self._nodes.values())]:
            if process.poll() is None:
                process.kill()
        self.network.close()
        for process in [*self._others, *self._nodes.values()]:
            process.wait()

    def _start_server(self) -> None:
        log = self.folder / "server.log"
        command = [
            *(sys.executable, "-m", "evalpipe.sim.server", "--profile", "cliff", "--port", str(SERVER_PORT)),
            *("--host", f"{SUBNETS[SVC]}.{SERVER_NUMBER}", "--options", json.dumps(self.settings.server_options)),
            *("--ledger", str(self.ledger), "--dataset", str(self.repository / "datasets/logic-5k.parquet")),
        ]
        self._others.append(self._popen(SERVER, command, log))
        self._await_line(log, '"ready": true', self._others[-1])

    def _popen(self, host: str, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "RAY_ADDRESS": f"{SUBNETS[LAN]}.1:{GCS_PORT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        if command[1] == "start" and "--head" in command:
            del environment["RAY_ADDRESS"]
        with log.open("wb") as file:
            return subprocess.Popen(
                [*self.network.inside(host), *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                cwd=self.folder,
            )

    @staticmethod
    def _await_line(log: Path, words: str, process: subprocess.Popen[Any]) -> None:
        give_up_at = time.monotonic() + NODE_STARTS_WITHIN_S
        while words not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise AssertionError(f"no {words!r} in {log}: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)  # another process is watched
