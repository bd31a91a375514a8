"""Below the openai client: its HTTP client, the stamps of an attempt, and the hooks that stop bad responses early.

The SDK would follow redirects, read an error body of any size and wait for a connection inside the latency; all of that
is settled here. aiohttp carries the bytes, at two thirds of the CPU of the SDK's default (FACTS).
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol

import httpx2
from openai import DefaultAioHttpClient

from evalpipe.config import EndpointConfig
from evalpipe.control.quota import Told
from evalpipe.endpoint.answer import Answer
from evalpipe.endpoint.failures import classify_body, make, redact
from evalpipe.endpoint.quota_headers import read_quota
from evalpipe.errors import ConfigError, EndpointError
from evalpipe.prompt import CHARS_PER_TOKEN
from evalpipe.records import Completion

MAX_ERROR_BYTES = 64 * 1024  # enough for any error object
WRITE_TIMEOUT_S = 30.0
KEEPALIVE_S = 60.0

#: Encodings that blow the 16 KiB of one read up to 16 MiB at most; brotli and stacked encodings have no such bound.
ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})


class Progress(Protocol):
    """Told how a stream comes along, so that the worker can count what waits and what flows."""

    def first_token(self) -> None:
        """Note that the first text of the answer or of its reasoning is here; called at most once an attempt."""

    def tokens(self, count: int) -> None:
        """Add text that came, in about tokens: a quarter of its characters, whatever the events it came in.

        Servers and gateways gather tokens into events by the clock, so the number of events says nothing about speed.
        """


@dataclass(slots=True)
class Attempt:
    """The stamps of the attempt under way; instants are monotonic seconds, 0.0 until they happen.

    on_quota: called with what the response's headers say of quotas, if they do.
    """

    hide: Sequence[str] = ()
    progress: Progress | None = None
    on_quota: Callable[[Told], None] | None = None
    sent_at: float = 0.0
    first_token_at: float = 0.0
    last_byte_at: float = 0.0
    request_id: str = ""
    characters: int = 0

    def on_text(self, characters: int) -> None:
        if not self.first_token_at:
            self.first_token_at = self.last_byte_at
            if self.progress:
                self.progress.first_token()
        before, self.characters = self.characters, self.characters + characters
        if self.progress:
            self.progress.tokens(_about_tokens(self.characters) - _about_tokens(before))

    def complete(self, answer: Answer) -> Completion:
        return answer.completion(
            rtt_s=self.last_byte_at - self.sent_at,
            ttft_s=self.first_token_at - self.sent_at if self.first_token_at else None,
            request_id=self.request_id,
        )

    def failed(self, error: EndpointError) -> EndpointError:
        """Return a fresh error with the time on the wire: no traceback, no chain to an exception that holds the key."""
        if error.failure.kind == "reset" and self.last_byte_at:  # aiohttp tells both with one exception
            error = make("cut")
        rtt_s = time.monotonic() - self.sent_at if self.sent_at else 0.0
        return type(error)(replace(error.failure, rtt_s=rtt_s, request_id=self.request_id))


def _about_tokens(characters: int) -> int:
    """Return about how many tokens a text has; rounded up, so that one character is a token already."""
    return -(-characters // CHARS_PER_TOKEN)


# the hooks of the HTTP client know the request but not who sends it; the context of the task does
current: ContextVar[Attempt] = ContextVar("evalpipe_attempt")


def http_client(config: EndpointConfig, *, cap: int) -> httpx2.AsyncClient:
    """Build the client for at most `cap` requests at a time; those who use it set `current` first."""
    connections = math.ceil(cap * 1.1) + 2  # above the cap: nobody waits for a connection inside a latency
    return DefaultAioHttpClient(
        trust_env=config.trust_env,
        verify=_trusted(config.ca_file),
        follow_redirects=False,  # a redirect would carry the prompt to another origin
        limits=httpx2.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE_S
        ),
        # no read timeout: it restarts with every byte, and a queued request is silent for minutes; the deadline ends it
        timeout=httpx2.Timeout(
            connect=config.connect_timeout_s, read=None, write=WRITE_TIMEOUT_S, pool=config.connect_timeout_s
        ),
        event_hooks={"request": [_on_request], "response": [_on_response]},
    )


def _trusted(ca_file: str | None) -> ssl.SSLContext | bool:
    """Return whom to trust. Raises ConfigError when the file cannot be read as certificates."""
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"endpoint.ca_file {ca_file}: {error.strerror or error}; a PEM file is needed") from None


async def _on_request(request: httpx2.Request) -> None:
    current.get().sent_at = time.monotonic()


async def _on_response(response: httpx2.Response) -> None:
    """Turn everything but a readable 2xx into an error of ours, before the SDK reads its body."""
    attempt = current.get()
    attempt.request_id = redact(response.headers.get("x-request-id", "")[:200], hide=attempt.hide)
    if attempt.on_quota is not None and (told := read_quota(response.headers, now=time.time())) is not None:
        attempt.on_quota(told)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if response.status_code >= 300:
        body = await _read_error(response) if encoding in ENCODINGS else b""
        raise classify_body(response.status_code, body, headers=response.headers, now=time.time(), hide=attempt.hide)
    if encoding not in ENCODINGS:
        raise make("bad_body", f"asked for no content encoding, got {encoding[:40]!r}")


async def _read_error(response: httpx2.Response) -> bytes:
    """Return the start of an error body; what the status says stands, even if the body is cut."""
    body = b""
    with suppress(httpx2.HTTPError):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_ERROR_BYTES:
                break
    return body[:MAX_ERROR_BYTES]
