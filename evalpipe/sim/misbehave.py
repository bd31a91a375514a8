"""How the simulated server misbehaves: faults as data by name, and the few ways a response can end.

`at_door` faults answer at once with something wrong. The others let the model work and break the answer: a stream after
its first token, a whole answer in the middle of its body. Which request meets which fault is a hash of the seed, the
request's key and how often that key was asked, so a retry may fare better and order does not matter.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from evalpipe.errors import ConfigError
from evalpipe.sim.exchange import Exchange
from evalpipe.sim.profiles import did_you_mean
from evalpipe.sim.wire import error_body

End = Literal["complete", "close", "reset", "drip", "hang"]
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Fault:
    """body: what a request that is not streamed gets; tail: the rest of a stream after its first chunk.

    end: how it ends after that. complete; close and reset: cut in the middle; drip: a byte now and then until the
    client goes; hang: not even a head. repeat: how often the body is sent, for bodies too big to keep.
    """

    name: str
    at_door: bool = True
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    tail: bytes = b""
    end: End = "complete"
    repeat: int = 1

    @property
    def outcome(self) -> str:
        return "cut" if self.end in ("close", "reset") else "fault"


def _refusal(name: str, status: int, message: str, *, code: str, kind: str = "server_error", wait: str = "") -> Fault:
    headers = (("retry-after", wait),) if wait else ()
    return Fault(name, status=status, body=error_body(message, code=code, kind=kind), headers=headers)


def _choices(text: str) -> bytes:
    """A chat completion whose `choices` is the given JSON text."""
    return (
        b'{"id":"chatcmpl-fault","object":"chat.completion","created":0,"model":"sim","choices":%b,'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}' % text.encode()
    )


def _message(content: str, finish_reason: str = '"stop"') -> bytes:
    message = f'{{"role":"assistant","content":{content}}}'
    return _choices(f'[{{"index":0,"message":{message},"finish_reason":{finish_reason}}}]')


_HTML = b"<!doctype html><html><body><h1>It works!</h1></body></html>"
_DONE = b"data: [DONE]\n\n"
_BROKEN = error_body("the engine died", code="500", kind="InternalServerError")

FAULTS = {
    fault.name: fault
    for fault in (
        _refusal("rate_limited", 429, "too many requests", code="rate_limit_exceeded", kind="requests", wait="1"),
        _refusal("overloaded", 503, "the queue is full", code="503"),
        _refusal("server_error", 500, "internal error", code="500"),
        _refusal("bad_gateway", 502, "upstream failed", code="502"),
        _refusal("bad_key", 401, "invalid API key", code="invalid_api_key", kind="invalid_request_error"),
        _refusal("no_model", 404, "no such model", code="model_not_found", kind="invalid_request_error"),
        _refusal("insufficient_quota", 429, "quota is gone", code="insufficient_quota", kind="insufficient_quota"),
        _refusal("too_long", 400, "the prompt is too long", code="context_length_exceeded", kind="BadRequestError"),
        _refusal("filtered", 400, "content filter", code="content_filter", kind="invalid_request_error"),
        Fault("html_200", body=_HTML, content_type="text/html"),
        Fault("error_in_200", body=_BROKEN),
        Fault("empty_choices", body=_choices("[]")),
        Fault("null_content", body=_message("null")),
        Fault("nan", body=_message("NaN")),
        Fault("list_body", body=b"[1,2]"),
        Fault("empty_body"),
        Fault("bad_json", body=_message('"cut"')[:-60]),
        Fault("bad_utf8", body=_message('"x"').replace(b'"x"', b'"\xff\xfe"')),
        Fault("oversize", body=b" " * _MIB, repeat=24),
        Fault("reset_early", end="reset"),
        Fault("hang", end="hang"),
        Fault("slow_loris", end="drip"),
        Fault("cut_stream", at_door=False, end="close"),
        Fault("reset", at_door=False, end="reset"),
        Fault("no_finish_reason", at_door=False, body=_message('"so then"', "null"), tail=_DONE),
        Fault("error_event_in_stream", at_door=False, body=_BROKEN, tail=b"data: " + _BROKEN + b"\n\n" + _DONE),
        Fault("stall", at_door=False, end="hang"),
    )
}


class FaultPlan:
    """Which request meets which fault. shares: fault name -> share of requests, together at most 1."""

    def __init__(self, shares: Mapping[str, float], *, seed: int) -> None:
        for name, share in shares.items():
            if name not in FAULTS:
                raise ConfigError(f"unknown fault {name!r}; {did_you_mean(name, FAULTS)}")
            if not 0 <= share <= 1:
                raise ConfigError(f"fault {name}: a share lies in [0, 1], got {share}")
        if sum(shares.values()) > 1 + 1e-9:
            raise ConfigError(f"the shares of all faults together must be at most 1, got {sum(shares.values()):g}")
        self._shares = sorted(shares.items())
        self._seed = seed
        self._asked: Counter[str] = Counter()

    def choose(self, key: str) -> Fault | None:
        """Return the fault of this request, None for an honest answer. Counts the call as one more asking of `key`."""
        if not self._shares:
            return None
        self._asked[key] += 1
        draw = random.Random(f"fault/{self._seed}/{key}/{self._asked[key]}").random()
        for name, share in self._shares:
            draw -= share
            if draw < 0:
                return FAULTS[name]
        return None


async def misbehave_at_door(fault: Fault, exchange: Exchange) -> None:
    """Answer with the fault instead of an answer."""
    if fault.end == "reset":
        exchange.reset()
    elif fault.end == "hang":
        await exchange.until_gone()
    elif fault.end == "drip":
        await exchange.start(200, content_type=fault.content_type)
        await _drip(exchange)
    else:
        length = len(fault.body) * fault.repeat
        await exchange.start(fault.status, content_type=fault.content_type, length=length, headers=fault.headers)
        for left in range(fault.repeat - 1, -1, -1):
            await exchange.write(fault.body, is_last=left == 0)


async def misbehave_in_stream(fault: Fault, exchange: Exchange) -> None:
    """Go on after the first chunk of a stream."""
    await exchange.write(fault.tail, is_last=fault.end == "complete")
    await _end(fault, exchange)


async def misbehave_in_body(fault: Fault, exchange: Exchange, *, honest: bytes) -> None:
    """Answer a request that is not streamed: with the fault's own body, or with half of the honest one."""
    if fault.end == "complete":
        await exchange.respond(200, fault.body)
        return
    await exchange.start(200, content_type="application/json", length=len(honest))
    await exchange.write(honest[: len(honest) // 2])
    await _end(fault, exchange)


async def _end(fault: Fault, exchange: Exchange) -> None:
    if fault.end == "close":
        exchange.close()
    elif fault.end == "reset":
        exchange.reset()
    elif fault.end == "hang":
        await exchange.until_gone()


async def _drip(exchange: Exchange) -> None:
    while not await exchange.until_gone(poll_s=0.2):
        await exchange.write(b" ")
