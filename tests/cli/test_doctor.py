"""What `evalpipe doctor` makes of Ray, its token and who can reach it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from evalpipe.cli.doctor_ray import Check, check_ray, is_exposed, probe_job_api

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
GCS_EVERYWHERE = HEADER + "   0: 00000000:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0 0 1\n"
GCS_EVERYWHERE_6 = HEADER + f"   0: {'0' * 32}:18EB {'0' * 32}:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n"
GCS_ON_LOOPBACK = GCS_EVERYWHERE.replace("00000000:18EB", "0100007F:18EB")
GCS_CONNECTED = GCS_EVERYWHERE.replace(" 0A ", " 01 ")


def named(checks: list[Check], name: str) -> Check | None:
    return next((check for check in checks if check.name == name), None)


def environment(tmp_path: Path, **settings: str) -> dict[str, str]:
    return {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "auth_token"), **settings}


@pytest.mark.parametrize(
    ("address", "table", "expected"),
    [
        ("10.0.0.1:6379", "", True),
        ("head.lan:6379", "", True),
        ("127.0.0.1:6379", GCS_EVERYWHERE, True),
        ("localhost:6379", GCS_EVERYWHERE_6, True),
        ("[::1]:6379", GCS_EVERYWHERE_6, True),
        ("127.0.0.1:6379", GCS_ON_LOOPBACK, False),
        ("127.0.0.1:6379", GCS_CONNECTED, False),
        ("127.0.0.1:6380", GCS_EVERYWHERE, False),
        ("auto", "", False),
    ],
)
def test_exposed_means_that_another_machine_can_connect(address: str, table: str, expected: bool):
    """Another host, or a local port that is listened on at every address; a connection is no listener."""
    assert is_exposed(address, [table]) is expected


@pytest.mark.parametrize("mode", ["", "disabled"])
def test_a_reachable_ray_without_token_fails(tmp_path: Path, mode: str):
    """Ray's gcs listens everywhere: without a token that is a shell for strangers."""
    environ = environment(tmp_path, RAY_ADDRESS="127.0.0.1:6379", RAY_AUTH_MODE=mode)

    found = named(check_ray(environ, socket_tables=[GCS_EVERYWHERE]), "ray token")

    assert found is not None and found.ok is False
    assert "set it to token" in found.found


def test_a_ray_on_loopback_may_do_without(tmp_path: Path):
    """Told, not failed."""
    environ = environment(tmp_path, RAY_ADDRESS="127.0.0.1:6379")

    found = named(check_ray(environ, socket_tables=[GCS_ON_LOOPBACK]), "ray token")

    assert found is not None and found.ok is None


@pytest.mark.parametrize(("mode", "ok"), [(0o600, True), (0o400, True), (0o640, False), (0o644, False), (0o604, False)])
def test_a_token_file_that_others_can_read_fails(tmp_path: Path, mode: int, ok: bool):
    """Ray makes it 0644; the line says how to mend it, and never what is in it."""
    token = tmp_path / "auth_token"
    token.write_text("canary-token")
    token.chmod(mode)

    found = named(check_ray(environment(tmp_path), socket_tables=[]), "ray token file")

    assert found is not None and found.ok is ok
    assert ok or f"chmod 600 {token}" in found.found
    assert "canary-token" not in found.found


def test_token_mode_without_a_token_fails(tmp_path: Path):
    """Ray itself says only ConnectionError there."""
    environ = environment(tmp_path, RAY_ADDRESS="10.0.0.1:6379", RAY_AUTH_MODE="token")

    with_file = named(check_ray(environ, socket_tables=[]), "ray token file")
    with_variable = named(check_ray({**environ, "RAY_AUTH_TOKEN": "x"}, socket_tables=[]), "ray token file")

    assert with_file is not None and with_file.ok is False and "--generate" in with_file.found
    assert with_variable is None


def test_without_an_address_nothing_of_a_cluster_is_judged(tmp_path: Path):
    """A run of its own starts its own Ray."""
    checks = check_ray(environment(tmp_path), socket_tables=[GCS_EVERYWHERE])

    assert [(check.name, check.ok) for check in checks] == [("ray address", None)]


@contextmanager
def job_api(status: int) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.network
@pytest.mark.parametrize(("status", "ok"), [(401, True), (403, True), (200, False), (500, False)])
def test_a_job_api_that_answers_strangers_fails(status: int, ok: bool):
    """Only a refusal passes: asked without a token, anything else would answer anybody."""
    with job_api(status) as base:
        found = probe_job_api(base)

    assert found.ok is ok, found


@pytest.mark.network
def test_a_job_api_that_is_not_there_fails():
    """With the address that was tried."""
    with job_api(200) as base:
        pass

    found = probe_job_api(base)

    assert found.ok is False
    assert base in found.found
