"""Server-sent events, read incrementally from raw bytes: bytes in, data payloads out. No I/O, no JSON.

The SDK's own reader builds an object for each event, which costs ten times the CPU and distorts latency (FACTS), so
the client feeds raw chunks here. Format: https://html.spec.whatwg.org/multipage/server-sent-events.html section 9.2.6.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"

#: One event of a chat stream is a few hundred bytes. The bound keeps a line that never ends from being copied again
#: with every chunk, which is quadratic.
MAX_LINE_BYTES = 2**20


class LineTooLong(ValueError):
    """A line passed the bound: not a stream that a model server sends."""


class ErrorEvent(bytes):
    """Payload of an event that the server named `error`; all other payloads are plain bytes."""


class SseParser:
    """Split one response into the data payloads of its events, however the bytes were cut on the way.

    An event that the stream does not close with an empty line is dropped, as the standard says.
    """

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._tail = b""
        self._skip_newline = False
        self._at_start = True
        self._data: list[bytes] = []
        self._event = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take in the next bytes and return the payloads they complete, in order.

        Lines end with LF, CRLF or CR. Comments, ids and retry times are dropped; data lines of one event are joined
        with LF. Raises LineTooLong when one line is longer than max_line_bytes; the parser is then of no more use.
        """
        payloads: list[bytes] = []
        for line in self._lines(chunk):
            if not line:
                self._dispatch(payloads)
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            else:
                self._rare_field(line)
        return payloads

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._skip_newline and chunk:
            # the CR that ended the last chunk was the first half of a CRLF
            self._skip_newline = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._skip_newline = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > self._max_line_bytes or any(len(line) > self._max_line_bytes for line in lines):
            raise LineTooLong(f"a line of the stream is longer than {self._max_line_bytes} bytes")
        if self._at_start and lines:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        return lines

    def _dispatch(self, payloads: list[bytes]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            payloads.append(ErrorEvent(data) if self._event == b"error" else data)
            self._data = []
        self._event = b""

    def _rare_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._event = value.removeprefix(b" ")
        elif name == b"data":  # "data" without a colon: an empty line of data
            self._data.append(b"")
