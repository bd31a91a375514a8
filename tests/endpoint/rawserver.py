"""A server that writes literal bytes: full control over headers, cuts, resets and silence. Not a test module."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import orjson

RESET = "reset"
CLOSE = "close"
HANG = "hang"

#: What happens after a request was read: bytes are written, a number is a pause in seconds, a word ends it.
Reply = Sequence[bytes | float | str]


def response(
    body: bytes | object, *, status: str = "200 OK", content_type: str = "application/json", headers: str = ""
) -> bytes:
    """Return a whole response with Content-Length; anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-Request-Id: r-1\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: object) -> bytes:
    """Return one event of a stream as a chunk; anything but bytes is sent as JSON."""
    return piece(b"data: " + (data if isinstance(data, bytes) else orjson.dumps(data)) + b"\n\n")


def delta(content: object = None, *, finish: str | None = None, **fields: object) -> bytes:
    """Return the event of one chunk of a chat stream."""
    message = {"content": content, **fields} if content is not None else fields
    return event({"model": "m-1", "choices": [{"index": 0, "delta": message, "finish_reason": finish}]})


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
STREAM = (
    STREAM_HEAD,
    delta("", role="assistant"),
    delta("four"),
    delta(" two"),
    delta(finish="stop"),
    event({"choices": [], "usage": USAGE}),
    event(b"[DONE]"),
    STREAM_END,
)


def completion(content: object = "four two", *, finish: str | None = "stop", **fields: object) -> dict[str, object]:
    """Return the body of a chat completion."""
    message = {"role": "assistant", "content": content, **fields}
    return {
        "model": "m-1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": USAGE,
    }


@dataclass
class RawServer:
    """What a test sees of the server: where it is, and the head and body of every request."""

    replies: Sequence[Reply]
    reads_body: bool = True
    url: str = ""
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    connections: int = 0
    got_request: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> str | None:
        """Return a header of the last request, None when it was not sent."""
        lines = [line.partition(":") for line in self.requests[-1][0].splitlines()]
        return next((value.strip() for key, _, value in lines if key.lower() == name.lower()), None)

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await self._read_request(reader)
                reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
                if not await play(reply, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _read_request(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if not self.reads_body:
            self.requests.append((head, b""))
            return
        length = next((int(x.split(":")[1]) for x in head.splitlines() if x.lower().startswith("content-length")), 0)
        self.requests.append((head, await reader.readexactly(length)))
        self.got_request.set()


async def play(reply: Reply, writer: asyncio.StreamWriter) -> bool:
    """Carry out one reply and tell whether the connection stays open."""
    for step in reply:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif isinstance(step, float):
            await asyncio.sleep(step)
        elif step == HANG:
            await asyncio.sleep(3600)
        else:
            if step == RESET:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return False
    return True


@asynccontextmanager
async def serve(*replies: Reply, reads_body: bool = True) -> AsyncIterator[RawServer]:
    """Answer the n-th request with the n-th reply, every later one with the last."""
    raw = RawServer(replies, reads_body)
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[asyncio.create_task(raw.on_connection(reader, writer))] = writer

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield raw
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*map(_end, tasks.values()))


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close a connection before the loop ends, also one whose task never began: else its warning hits a later test."""
    writer.close()
    with suppress(OSError):
        async with asyncio.timeout(1):
            await writer.wait_closed()
