"""One HTTP exchange over raw ASGI, and the two things ASGI does not offer: the socket, and who hung up.

uvicorn's protocol class is extended by two hooks that keep a register of open connections by the client's address.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HeaderList = Iterable[tuple[str, str]]


class Connection:
    """A client's connection while it is open."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.is_gone = False
        self.on_gone: Callable[[], None] = _ignore

    def lose(self) -> None:
        self.is_gone = True
        self.on_gone()


def _ignore() -> None:
    return None


class Connections:
    """The open connections by (host, port) of the client."""

    def __init__(self) -> None:
        self._by_peer: dict[tuple[str, int], Connection] = {}

    def of(self, scope: Scope) -> Connection:
        return self._by_peer[tuple(scope["client"])]

    def abort_all(self) -> None:
        for connection in list(self._by_peer.values()):
            connection.transport.abort()

    def protocol_class(self) -> type[asyncio.Protocol]:
        """Return uvicorn's HTTP protocol (httptools where it is installed, else h11) that reports to this register."""
        if importlib.util.find_spec("httptools") is not None:
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
        else:
            from uvicorn.protocols.http.h11_impl import H11Protocol as Base
        by_peer = self._by_peer

        class Registered(Base):  # type: ignore[misc]  # uvicorn is untyped to mypy
            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                self._peer = tuple(transport.get_extra_info("peername")[:2])
                by_peer[self._peer] = self._connection = Connection(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                if by_peer.get(self._peer) is self._connection:  # a port may be in use again already
                    del by_peer[self._peer]
                super().connection_lost(exc)
                self._connection.lose()

        return Registered


class Exchange:
    """A request and the response to it. Header names are lower case."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, connection: Connection) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self.connection = connection

    @property
    def is_gone(self) -> bool:
        return self.connection.is_gone

    def header(self, name: str) -> str | None:
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    async def body(self) -> bytes:
        parts = []
        while True:
            message = await self._receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def respond(
        self, status: int, body: bytes, *, content_type: str = "application/json", headers: HeaderList = ()
    ) -> None:
        await self.start(status, content_type=content_type, length=len(body), headers=headers)
        await self.write(body, is_last=True)

    async def start(
        self, status: int, *, content_type: str, length: int | None = None, headers: HeaderList = ()
    ) -> None:
        """Send the head; length None means chunked."""
        every = [("content-type", content_type), *headers]
        if length is not None:
            every.append(("content-length", str(length)))
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in every]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    def write_raw(self, data: bytes) -> None:
        """Send bytes beside all HTTP; after this only the end of the connection makes sense."""
        self.connection.transport.write(data)

    def close(self) -> None:
        """Send what was written, then end the connection in the middle of the response."""
        self.connection.transport.close()

    def reset(self) -> None:
        """End the connection with a TCP reset: zero linger throws away what is not sent yet."""
        sock: socket.socket = self.connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.transport.abort()

    async def until_gone(self, *, poll_s: float | None = None) -> bool:
        """Wait until the client hung up; with poll_s at most so long. Return whether it did."""
        if self.is_gone:
            return True
        gone = asyncio.Event()
        self.connection.on_gone = gone.set
        try:
            async with asyncio.timeout(poll_s):
                await gone.wait()
        except TimeoutError:
            return False
        return True
