"""What a server can do wrong, as data: one Fault by name for each way. Rows of notes/reliability.md section 3.2.

Nothing here acts: sim/misbehave.py plays a fault, and evalpipe/endpoint/failures.py has the row that each must become.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

from evalpipe.sim.wire import HONEST, Twist, error_body

End = Literal["complete", "close", "reset", "drip", "hang"]
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to misbehave.

    at_door: answers at once with something wrong; else the model works and its answer is broken after the first chunk
    of a stream, or in the middle of a body.
    body: what a request that is not streamed gets, with status, content_type and headers. tail: what a stream gets
    instead: all of it at the door, the rest of it behind the first chunk. repeat: how often either is sent, for what is
    too big to keep. missing: bytes that Content-Length promises and that never come. raw: bytes in place of HTTP.
    end: complete; close, reset: broken off; drip: a byte now and then until the client goes; hang: nothing more.
    twist: set, the answer is whole and counts as one, but something in it is not as it should be.
    """

    name: str
    at_door: bool = True
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    tail: bytes = b""
    repeat: int = 1
    missing: int = 0
    raw: bytes = b""
    end: End = "complete"
    twist: Twist = HONEST

    @property
    def outcome(self) -> str:
        return "cut" if self.end in ("close", "reset") else "fault"

    @property
    def is_silent(self) -> bool:
        """It ends when the client goes; until then its request is inside."""
        return self.end in ("drip", "hang")


def _refusal(name: str, status: int, message: str, *, code: str | int, kind: str, **headers: str) -> Fault:
    told = tuple((key.replace("_", "-"), value) for key, value in headers.items())
    return Fault(name, status=status, body=error_body(message, code=code, kind=kind), headers=told)


def _choices(text: str) -> bytes:
    """A chat completion whose `choices` is the given JSON text."""
    return (
        b'{"id":"chatcmpl-fault","object":"chat.completion","created":0,"model":"sim","choices":%b,'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}' % text.encode()
    )


def _message(content: str, finish_reason: str = '"stop"') -> bytes:
    message = f'{{"role":"assistant","content":{content}}}'
    return _choices(f'[{{"index":0,"message":{message},"finish_reason":{finish_reason}}}]')


def _bomb(mib: int) -> bytes:
    """Gzip of so many MiB of zeros, a kilobyte each. A full flush makes blocks that can be repeated; its end is left
    out, which nobody should get to see."""
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(_MIB)
    first = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + (packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)) * (mib - 1)


_SSE = "text/event-stream; charset=utf-8"
_HTML = b"<!doctype html><html><body><h1>It works!</h1></body></html>"
_DONE = b"data: [DONE]\n\n"
_BROKEN = error_body("the engine died", code=500, kind="InternalServerError")
_FULL = error_body("the waiting queue is full", code=503, kind="ServiceUnavailable")
_CONTEXT = "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens."
_DELTA = b'data: {"choices":[{"index":0,"delta":{"content":" so"},"finish_reason":null}]}\n\n'
_BAD, _INVALID = "BadRequestError", "invalid_request_error"

_REFUSALS = (
    # item
    _refusal("bad_request", 400, "messages must not be empty", code=400, kind=_BAD),
    _refusal("not_found", 404, "no such path", code="not_found", kind="not_found"),
    _refusal("too_large", 413, "the body is too large", code=413, kind=_INVALID),
    _refusal("unprocessable", 422, "n is not a number", code=422, kind=_INVALID),
    _refusal("too_long", 400, "the prompt is too long", code="context_length_exceeded", kind=_INVALID),
    _refusal("too_long_vllm", 400, _CONTEXT, code=400, kind=_BAD),
    _refusal("too_long_as_500", 500, _CONTEXT, code="500", kind="server_error"),
    _refusal("filtered", 400, "content filter", code="content_filter", kind=_INVALID),
    # run
    _refusal("bad_key", 401, "invalid API key", code="invalid_api_key", kind=_INVALID),
    _refusal("forbidden", 403, "this key may not do that", code="forbidden", kind="permission_error"),
    _refusal("no_model", 404, "no such model", code="model_not_found", kind=_INVALID),
    _refusal("payment_required", 402, "pay first", code=402, kind="billing_error"),
    _refusal("insufficient_quota", 429, "quota is gone", code="insufficient_quota", kind="insufficient_quota"),
    _refusal("credit_exhausted", 429, "no credit is left", code="credit_balance_exhausted", kind=_INVALID),
    _refusal("spend_limit", 429, "the budget is spent", code="project_spend_limit_exceeded", kind=_INVALID),
    _refusal("usage_limit", 429, "enough for this month", code="monthly_usage_limit_exceeded", kind=_INVALID),
    # pause
    _refusal("rate_limited", 429, "too many requests", code="rate_limit_exceeded", kind="requests", retry_after="1"),
    _refusal("rate_limited_ms", 429, "slower", code="rate_limit_exceeded", kind="requests", retry_after_ms="300"),
    _refusal(
        "rate_limited_date",
        429,
        "slower",
        code="rate_limit_exceeded",
        kind="requests",
        date="Sun, 06 Nov 1994 08:49:37 GMT",
        retry_after="Sun, 06 Nov 1994 08:49:38 GMT",
    ),
    _refusal("rate_limited_oddly", 429, "slower", code="rate_limit_exceeded", kind="requests", retry_after="soon"),
    _refusal("overloaded", 503, "the queue is full", code="503", kind="server_error"),
    _refusal("overloaded_529", 529, "overloaded", code=529, kind="overloaded_error"),
    # retry
    _refusal("request_timeout", 408, "the request took too long to come", code=408, kind="timeout"),
    _refusal("conflict", 409, "locked", code=409, kind="conflict"),
    _refusal("too_early", 425, "too early", code=425, kind="too_early"),
    _refusal("server_error", 500, "internal error", code="500", kind="server_error"),
    _refusal("bad_gateway", 502, "upstream failed", code="502", kind="server_error"),
    _refusal("gateway_timeout", 504, "upstream is slow", code=504, kind="server_error"),
    _refusal("origin_timeout", 524, "a timeout occurred", code=524, kind="server_error"),
)

_AT_DOOR = (
    Fault("redirect", status=307, headers=(("location", "http://127.0.0.1:9/v1/chat/completions"),)),
    Fault("html_200", body=_HTML, content_type="text/html"),
    Fault("error_in_200", body=_BROKEN),
    Fault("empty_choices", body=_choices("[]")),
    Fault("null_content", body=_message("null")),
    Fault("nan", body=_message("NaN")),
    Fault("list_body", body=b"[1,2]"),
    Fault("null_body", body=b"null"),
    Fault("empty_body"),
    Fault("bad_json", body=_message('"cut"')[:-60]),
    Fault("bad_utf8", body=_message('"x"').replace(b'"x"', b'"\xff\xfe"')),
    Fault("oversize", body=b" " * _MIB, repeat=50),
    Fault("gzip_bomb", body=_bomb(200), headers=(("content-encoding", "gzip"),)),
    Fault("short_body", body=_message('"cut"')[:-110], missing=110, end="close"),
    Fault("garbage", raw=b"\x16\x03\x01\x02\x00no HTTP at all\r\n\r\n", end="close"),
    Fault("close_early", end="close"),
    Fault("reset_early", end="reset"),
    Fault("hang", end="hang"),
    Fault("slow_header", raw=b"HTTP/1.1 200 OK\r\nx-slow: ", end="drip"),
    Fault("slow_loris", end="drip"),
    Fault("bare_done", body=_choices("[]"), tail=_DONE),
    # as vLLM does with a full queue: the status is 200 by then
    Fault("overloaded_in_stream", status=503, body=_FULL, tail=b"data: " + _FULL + b"\n\n" + _DONE),
)

_IN_ANSWER = (
    Fault("cut_stream", at_door=False, end="close"),
    Fault("reset", at_door=False, end="reset"),
    Fault("stall", at_door=False, end="hang"),
    Fault("no_finish_reason", at_door=False, body=_message('"so then"', "null"), tail=_DONE),
    Fault("error_event_in_stream", at_door=False, body=_BROKEN, tail=b"data: " + _BROKEN + b"\n\n" + _DONE),
    Fault(
        "named_error_event",
        at_door=False,
        body=_BROKEN,
        tail=b'event: error\ndata: {"message":"the engine died","code":500}\n\n',
    ),
    Fault("endless_stream", at_door=False, body=b" " * 50_000, tail=_DELTA * 1_000, repeat=1_000),
)

#: The answer is whole and arrives; the first three are answers by policy, the rest is told wrong.
_TWISTED = tuple(
    Fault(name, at_door=False, twist=twist)
    for name, twist in (
        ("length", Twist(finish_reason="length")),
        ("filtered_answer", Twist(finish_reason="content_filter")),
        ("refusal", Twist(refusal="I cannot help with that.")),
        ("no_usage", Twist(has_usage=False)),
        ("wrong_model", Twist(model="another-model")),
        ("null_choices_chunk", Twist(has_null_choices=True)),
    )
)

FAULTS = {fault.name: fault for fault in (*_REFUSALS, *_AT_DOOR, *_IN_ANSWER, *_TWISTED)}
