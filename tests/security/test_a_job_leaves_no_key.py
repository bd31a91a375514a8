"""A Ray head as docs/cluster.md starts it, and a job with a marked key: nothing that Ray keeps or tells has it.

It has a dashboard and ports of its own, so it is not in the plain run: `make test-cluster`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from security.canary import files_with

from evalpipe.sim.server import SimServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CANARY = "sk-canary-4711-of-the-job-test"
STRAY = "sk-canary-0815-in-a-runtime-env"
BIN = Path(sys.executable).parent


class Head:
    """`ray start --head --block` with token and dashboard on loopback; the key is in its environment."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder = folder
        self.token = folder / "auth_token"
        self.token.write_text("0123456789abcdef" * 4)
        self.token.chmod(0o600)
        gcs, dashboard, agent, client = free_ports(4)
        self.api = f"http://127.0.0.1:{dashboard}"
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OPENAI_API_KEY": CANARY,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_API_SERVER_ADDRESS": self.api,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        self.environment.pop("RAY_ADDRESS", None)
        self.work = folder / "work"
        shutil.copytree(repository / "jobs", self.work / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
        command = [
            *("ray", "start", "--head", "--block", f"--port={gcs}", "--dashboard-host=127.0.0.1", "--num-cpus=2"),
            *(f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
            *(f"--ray-client-server-port={client}", f"--temp-dir={folder / 'ray'}", "--object-store-memory=100000000"),
        ]
        self._log = folder / "head.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, process_group=0)

    def await_start(self) -> None:
        give_up_at = time.monotonic() + 120
        while "Ray runtime started" not in self._log.read_text(errors="replace"):
            assert self._process.poll() is None and time.monotonic() < give_up_at, self._log.read_text()[-2000:]
            time.sleep(0.1)  # another process is watched

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, capture_output=True, text=True, env={**self.environment, **environment}, cwd=self.folder, timeout=200
        )

    def submit(self, name: str, *arguments: str, **env_vars: str) -> subprocess.CompletedProcess[str]:
        """Submit a run as the documentation says, and wait for its end."""
        runtime_env = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60", **env_vars}}
        return self.command(
            *("ray", "job", "submit", "--working-dir", str(self.work), "--submission-id", name),
            *("--runtime-env-json", json.dumps(runtime_env), "--", "python", "jobs/run_benchmark.py", *arguments),
        )

    def get(self, path: str, *, token: str | None) -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.api + path, headers=headers), timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def close(self) -> None:
        """End the head and what it started: all are in the process group that `ray start` leads, or name our folder."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in leftovers(self.folder):
            os.kill(pid, signal.SIGKILL)


def leftovers(folder: Path) -> list[int]:
    """Processes whose command line or environment names the folder: Ray's agents may outlive it for 20 s."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def head(request: pytest.FixtureRequest) -> Iterator[Head]:
    folder = Path(tempfile.mkdtemp(prefix="evj-"))  # short: Ray's sockets lie below it
    made = Head(folder, Path(__file__).parents[2])
    try:
        made.await_start()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def job(head: Head) -> subprocess.CompletedProcess[str]:
    """A run of 40 items as a job, against a server that wants the marked key."""
    dataset = Path(__file__).parents[2] / "datasets/logic-5k.parquet"
    with SimServer("instant", api_key=CANARY, faults={"server_error": 0.1}, seed=1) as server:
        return head.submit(
            "canary",
            *("--base-url", server.base_url, "--model", "sim", "--dataset", str(dataset), "--limit", "40"),
            *("-o", str(head.folder / "runs"), "--name", "mine", "--workers", "1"),
        )


def test_the_job_completes_with_the_key_of_its_nodes(job: subprocess.CompletedProcess[str]):
    """The key was exported before `ray start` and nowhere else."""
    assert job.returncode == 0, job.stdout + job.stderr
    assert "40 answered" in job.stdout


def test_nothing_that_ray_tells_has_the_key(head: Head, job: subprocess.CompletedProcess[str]):
    """The job's output and logs, `ray job list`, and the APIs of jobs, actors, tasks and runtime environments."""
    token = head.token.read_text()
    told = {"output": job.stdout + job.stderr}
    told["list"] = head.command("ray", "job", "list", "--log-style=record").stdout
    told["logs"] = head.command("ray", "job", "logs", "canary").stdout
    for path in ("/api/jobs/", "/api/v0/actors?detail=1", "/api/v0/tasks?detail=1", "/api/v0/runtime_envs?detail=1"):
        status, told[path] = head.get(path, token=token)
        assert status == 200, (path, status)

    assert "canary" in told["list"] and "canary" in told["/api/jobs/"]
    assert "WorkerActor" in told["/api/v0/actors?detail=1"]
    assert [where for where, text in told.items() if CANARY in text] == []


def test_nothing_that_was_written_has_the_key(head: Head, job: subprocess.CompletedProcess[str]):
    """Ray's session folder with all its logs, and the run."""
    assert (head.folder / "runs/mine/summary.json").exists()
    assert files_with(head.folder, CANARY) == []


def test_strangers_are_refused(head: Head):
    """Without the token the job API answers nothing, and doctor says that this is so."""
    status, body = head.get("/api/jobs/", token=None)
    doctor = head.command("evalpipe", "doctor", "--json")

    checks = {check["name"]: check for check in json.loads(doctor.stdout)}
    assert status == 401 and "canary" not in body
    assert checks["ray job api"]["ok"] is True
    assert checks["ray token file"]["ok"] is True


def test_a_key_in_the_runtime_environment_is_refused(head: Head):
    """Exit 2 before anything is sent, one line, and not the key; what Ray itself keeps of it is why."""
    with SimServer("instant") as server:
        said = head.submit("stray", "--base-url", server.base_url, "--model", "sim", OPENAI_API_KEY=STRAY)

    _, jobs = head.get("/api/jobs/", token=head.token.read_text())
    code = next(job["driver_exit_code"] for job in json.loads(jobs) if job["submission_id"] == "stray")
    errors = {line for line in said.stdout.splitlines() if line.startswith("error: ")}  # Ray repeats the last lines
    error = "".join(errors)
    assert code == 2, said.stdout
    assert len(errors) == 1 and "OPENAI_API_KEY" in error and "before `ray start`" in error
    assert STRAY not in error
    assert STRAY in jobs, "if Ray no longer shows it, this rule can go"
