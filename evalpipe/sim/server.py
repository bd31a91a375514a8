"""Serve a simulated model in this process (`serve`) or from the shell (`python -m evalpipe.sim.server`).

Imports neither ray nor openai, and uvicorn only where it serves: the ready line must come in under a second. Loopback
unless told otherwise. The key comes from the environment, never from an argument. `SimServer` (a server beside a run)
lives in process.py and is offered here too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalpipe.errors import ConfigError, EvalPipeError
from evalpipe.sim.process import SimServer
from evalpipe.sim.profiles import Profile, profile

if TYPE_CHECKING:
    from evalpipe.sim.face import FaceSettings
    from evalpipe.sim.misbehave import Shares

__all__ = ["SimServer", "main", "serve"]


def serve(
    profile: Profile,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    ledger: str | Path | None = None,
    dataset: str | Path | None = None,
    accuracy: float = 0.7,
    seed: int = 0,
    faults: Shares | None = None,
    api_key: str | None = None,
    parent_pid: int | None = None,
    stop_on_eof: bool = False,
    model: str = "sim",
) -> None:
    """Serve until SIGTERM or SIGINT, or until the process parent_pid is gone (looked at twice a second).

    stop_on_eof: end when standard input is closed, and ignore both signals: Ctrl-C and `ray job stop` reach the whole
    process tree of a driver, which then needs the server for what is still in flight.
    port 0: any free one. Prints one JSON line {"ready", "port", "base_url", "pid"} on stdout when it listens.
    Raises ConfigError when the address is taken or a setting cannot be served. Main thread only.
    """
    from evalpipe.sim.face import FaceSettings

    settings = FaceSettings(
        profile=profile,
        ledger=ledger,
        dataset=dataset,
        accuracy=accuracy,
        seed=seed,
        faults=faults or {},
        api_key=api_key,
        model=model,
    )
    sock = _listen(host, port)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, sock, parent_pid=parent_pid, stop_on_eof=stop_on_eof))


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _listen(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    sock.listen(2048)  # a burst of connects at the start of a run must not be refused
    return sock


async def _serve(settings: FaceSettings, sock: socket.socket, *, parent_pid: int | None, stop_on_eof: bool) -> None:
    import uvicorn

    from evalpipe.sim.face import Face

    face = Face(settings)
    config = uvicorn.Config(
        face,
        http=face.connections.protocol_class(),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,  # the client's address must stay the socket's: connections are found by it
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signal that stopped it again when it is done; by then stopping is over.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    if stop_on_eof:
        server.capture_signals = contextlib.nullcontext
        threading.Thread(target=_stop_on_eof, args=[server], daemon=True).start()
    watch = asyncio.create_task(_watch(server, face.connections.abort_all, sock, parent_pid))
    await server.serve(sockets=[sock])
    await watch


async def _watch(server: Any, abort_all: Callable[[], None], sock: socket.socket, parent_pid: int | None) -> None:
    """Announce the start, end with the parent, and hang up on all clients at the end."""
    is_child = parent_pid is not None and os.getppid() == parent_pid
    while not server.started and not server.should_exit:  # noqa: ASYNC110  # uvicorn offers flags, no events
        await asyncio.sleep(0.005)
    _announce(sock)
    checked_at = time.monotonic()
    while not server.should_exit:
        await asyncio.sleep(0.05)
        if parent_pid is not None and time.monotonic() - checked_at > 0.5:
            checked_at = time.monotonic()
            if _is_gone(parent_pid, is_child=is_child):
                server.should_exit = True  # never set to False: a signal may have set it in the meantime
    abort_all()


def _stop_on_eof(server: Any) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True


def _announce(sock: socket.socket) -> None:
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    ready = {"ready": True, "port": port, "base_url": f"http://{shown}:{port}/v1", "pid": os.getpid()}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()


def _is_gone(pid: int, *, is_child: bool) -> bool:
    if is_child:
        return os.getppid() != pid  # sees a parent that died but was not reaped, which a signal does not
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve by command line; return the exit code: 0 when stopped, 2 for wrong settings."""
    given = _parser().parse_args(arguments)
    try:
        serve(
            profile(given.profile, **_json_object(given.options, flag="--options")),
            port=given.port,
            host=given.host,
            ledger=given.ledger,
            dataset=given.dataset,
            accuracy=given.accuracy,
            seed=given.seed,
            faults=_json_object(given.faults, flag="--faults"),
            api_key=_key_from(given.api_key_env),
            parent_pid=given.parent_pid,
            stop_on_eof=given.stop_on_eof,
            model=given.model,
        )
    except EvalPipeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evalpipe.sim.server", description="Serve a simulated model.")
    parser.add_argument("--profile", default="vllm")
    parser.add_argument("--options", default="{}", help="numbers of the profile to replace, as a JSON object")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ledger", help="JSONL file to append to")
    parser.add_argument("--dataset", help="Parquet or JSONL file to answer from")
    parser.add_argument("--accuracy", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--faults", default="{}", help="share of requests by fault, as a JSON object; a share or {share, after, until}"
    )
    parser.add_argument("--api-key-env", help="name of the variable that holds the key clients must send")
    parser.add_argument("--parent-pid", type=int, help="end when this process is gone")
    parser.add_argument("--stop-on-eof", action="store_true", help="end when standard input closes, not by signals")
    parser.add_argument("--model", default="sim")
    return parser


def _json_object(text: str, *, flag: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise ConfigError(f"{flag} takes a JSON object, got {text!r}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} takes a JSON object, got {text!r}")
    return value


def _key_from(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"--api-key-env: the environment variable {variable} is not set")
    return key


if __name__ == "__main__":
    sys.exit(main())
