"""A real S3 server, and bad weather on the way to it, for tests of buckets."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

#: pass; cut: done, the connection closed instead of an answer; refuse: closed, not done; late 500: done, and a 500;
#: a status: not done, answered with it
Action = str | int

CODES = {409: "ConditionalRequestConflict", 500: "InternalError", 503: "SlowDown"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run moto as an HTTP server with one empty bucket named "bucket"; yield its URL."""
    from moto.server import ThreadedMotoServer  # a second to import: only for those who run these tests

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=x/1/us-east-1/s3/x"})
    assert connection.getresponse().read() is not None
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


def s3_environment(endpoint: str) -> dict[str, str]:
    """What a user exports to reach it."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


class Storm:
    """An HTTP relay before the server. decide: from the method of a request to what happens to it."""

    def __init__(self, endpoint: str) -> None:
        self.decide: Callable[[str], Action] = lambda method: "pass"
        self.strips_conditions = False
        self.harmed = 0
        self._lock = Lock()
        self._target = urlsplit(endpoint).netloc
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next_action(self, method: str) -> Action:
        with self._lock:
            action = self.decide(method)
            self.harmed += action != "pass"
            return action

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
        if self.strips_conditions:
            headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        connection = http.client.HTTPConnection(self._target)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.status, response.headers, response.read()
        connection.close()
        return answer

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        storm = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None: ...

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                action = storm.next_action(self.command)
                if action == "refuse":
                    self.drop()
                elif isinstance(action, int):
                    self.fail(action)
                else:
                    status, headers, data = storm.forward(self.command, self.path, dict(self.headers), body)
                    if action == "cut":
                        self.drop()
                    elif action == "late 500":
                        self.fail(500)
                    else:
                        self.answer(status, dict(headers), data)

            def drop(self) -> None:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

            def fail(self, status: int) -> None:
                self.answer(status, {}, f"<Error><Code>{CODES[status]}</Code></Error>".encode())

            def answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
                skipped = ("content-length", "transfer-encoding", "connection", "date", "server")
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in skipped:
                        self.send_header(name, value)
                length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

        return Handler
