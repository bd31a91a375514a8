"""The client of one server: one request in, a Completion or an EndpointError out. Nothing foreign passes this module.

The openai client sends; its response objects are never built. Bytes are read raw under a cap and a wall-clock deadline,
because the SDK has neither (FACTS): a server that drips a byte now and then would hold a call for ever. No retry, no
redirect, no proxy unless asked. Not picklable: each worker builds its own, from config and environment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, cast

import httpx2
import orjson
from openai import AsyncOpenAI, AsyncStream, Omit

from evalpipe.config import EndpointConfig, SamplingConfig
from evalpipe.control.quota import Told
from evalpipe.endpoint.address import derive_deadline, normalise_base_url, resolve_base_url
from evalpipe.endpoint.answer import Answer
from evalpipe.endpoint.failures import classify_error_object, classify_exception, make
from evalpipe.endpoint.keys import read_api_key
from evalpipe.endpoint.sse import ErrorEvent, LineTooLong, SseParser
from evalpipe.endpoint.transport import Attempt, Progress, current, http_client
from evalpipe.errors import RunFatal
from evalpipe.records import Completion, Request

__all__ = ["Endpoint", "Progress", "derive_deadline", "normalise_base_url", "resolve_base_url"]

#: After [DONE] nothing more is said. Waiting for the end of the body keeps the connection for the next request; a
#: server that forgets to end it costs this much and no more.
AFTER_DONE_S = 1.0

_NOT_A_STREAM = ("application/json", "text/html")


class Endpoint:
    """Sends requests to one model at one URL. Build it inside the event loop that uses it; aclose() it at the end.

    model, base_url: as preflight resolved them. cap: the most requests this worker will ever have in flight.
    environ: where the key is read from, os.environ by default; again whenever it was refused. on_quota: called with
    what the headers of a response say of quotas. Raises RunFatal of kind "auth" when there is no key.
    """

    def __init__(
        self,
        config: EndpointConfig,
        sampling: SamplingConfig,
        *,
        model: str,
        base_url: str,
        cap: int,
        environ: Mapping[str, str] | None = None,
        on_quota: Callable[[Told], None] | None = None,
    ) -> None:
        self._on_quota = on_quota
        environ = os.environ if environ is None else environ
        self._read_key = partial(read_api_key, config.api_key_env, base_url=base_url, environ=environ)
        self._keys: tuple[str, ...] = (self._read_key(),)  # the one in use, and the one before it
        self._max_bytes = config.max_response_bytes
        self._body = _request_body(config, sampling, model, is_streamed=config.stream != "none")
        #: of requests into which nobody looks
        self._unwatched = _request_body(config, sampling, model, is_streamed=config.stream == "all")
        self._client = AsyncOpenAI(
            api_key=self._keys[0],
            base_url=base_url,
            max_retries=0,  # the law must see every attempt
            http_client=http_client(config, cap=cap),
            default_headers={**config.headers, "Accept-Encoding": "identity"},
            default_query=config.query,
        )
        self._key_header = config.key_header

    def __repr__(self) -> str:
        return f"Endpoint({self._client.base_url}, model={self._body['model']!r})"

    async def send(
        self, request: Request, *, trace: str | None = None, deadline_s: float, progress: Progress | None = None
    ) -> Completion:
        """Make one attempt and return its answer, timed from the moment the request goes to a connection.

        trace: value of the header X-Evalpipe, None to send none. deadline_s: wall clock, for the whole attempt.
        progress: told how the stream comes along; without it, and where a sample is streamed, the answer comes whole.
        Raises an EndpointError, of the class endpoint/failures.py gives it, and nothing else (cancellation passes).
        """
        prompts = [text for message in request.messages if (text := message.get("content"))]
        attempt = Attempt(hide=(*self._keys, *prompts), progress=progress, on_quota=self._on_quota)
        body = {**(self._body if progress is not None else self._unwatched), "messages": request.messages}
        headers = self._key_headers() | ({"X-Evalpipe": trace} if trace else {})
        token = current.set(attempt)
        try:
            async with asyncio.timeout(deadline_s):
                return attempt.complete(await self._converse(body, headers, attempt))
        except Exception as error:
            failed = attempt.failed(classify_exception(error))
        finally:
            current.reset(token)
        if failed.failure.kind == "auth":
            self._renew_key()
        raise failed  # outside the handler, so that the foreign exception is not its context

    async def get(self, path: str, *, deadline_s: float) -> bytes:
        """Return the body of a GET of a path below the base URL, or of a whole URL; for preflight. Raises like send."""
        attempt = Attempt(hide=self._keys)
        token = current.set(attempt)
        try:
            async with asyncio.timeout(deadline_s):
                response = await self._client.get(
                    path,
                    cast_to=httpx2.Response,
                    options={"headers": self._key_headers()},
                    stream=True,
                    stream_cls=_UNREAD,
                )
                return b"".join([chunk async for chunk in self._chunks(cast(httpx2.Response, response), attempt)])
        except Exception as error:
            failed = attempt.failed(classify_exception(error))
        finally:
            current.reset(token)
        raise failed

    def _key_headers(self) -> dict[str, str | Omit]:
        """Return the headers that carry the key where it is not the client that sets them."""
        return {self._key_header: self._keys[0], "Authorization": Omit()} if self._key_header else {}

    def _renew_key(self) -> None:
        """The key was refused: read it again, so that the next request carries one that was rotated meanwhile."""
        with suppress(RunFatal):  # the file is being replaced: the old key is refused once more, that is all
            if (key := self._read_key()) != self._keys[0]:
                self._keys = (key, self._keys[0])
                self._client.api_key = key

    async def aclose(self) -> None:
        """Close all connections; attempts under way fail."""
        await self._client.close()

    async def _converse(self, body: Mapping[str, Any], headers: Mapping[str, str | Omit], attempt: Attempt) -> Answer:
        answer = Answer(hide=attempt.hide)
        response = await self._post(body, headers)
        async with aclosing(self._chunks(response, attempt)) as chunks:
            content_type = response.headers.get("content-type", "")
            if body["stream"] and not content_type.startswith(_NOT_A_STREAM):
                await _read_stream(chunks, answer, attempt)
            else:
                data = b"".join([chunk async for chunk in chunks])
                answer.add_body(_parse(data, content_type))
        return answer

    async def _post(self, body: Mapping[str, Any], headers: Mapping[str, str | Omit]) -> httpx2.Response:
        """Return the response with its body unread.

        The same bytes as `chat.completions.create` sends, without walking every message by its schema first: 0.44
        against 0.76 ms of CPU a request.
        """
        response = await self._client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            body=body,
            options={"headers": headers},
            stream=True,
            stream_cls=_UNREAD,
        )
        return cast(httpx2.Response, response)

    async def _chunks(self, response: httpx2.Response, attempt: Attempt) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives, stamped before anything is parsed; the response is closed at the end."""
        received = 0
        try:
            async for chunk in response.aiter_bytes():
                attempt.last_byte_at = time.monotonic()
                received += len(chunk)
                if received > self._max_bytes:
                    raise make("oversize", f"the response is larger than {self._max_bytes} bytes")
                yield chunk
        finally:
            await response.aclose()


#: Says to the SDK "leave the body unread". With cast_to=httpx2.Response it is never built.
_UNREAD = AsyncStream[object]


async def _read_stream(chunks: AsyncIterator[bytes], answer: Answer, attempt: Attempt) -> None:
    """Feed the events of a stream to the answer until [DONE] or the end of the body."""
    parser = SseParser()
    async for chunk in chunks:
        payloads = _feed(parser, chunk)
        is_done = b"[DONE]" in payloads
        characters = sum(_add_event(answer, payload, attempt) for payload in payloads if payload != b"[DONE]")
        if characters:
            attempt.on_text(characters)
        if is_done:
            break
    with suppress(TimeoutError, httpx2.TransportError):  # all is said: how the body ends does not matter
        async with asyncio.timeout(AFTER_DONE_S):
            async for _ in chunks:
                pass


def _feed(parser: SseParser, chunk: bytes) -> list[bytes]:
    try:
        return parser.feed(chunk)
    except LineTooLong as error:
        raise make("oversize", str(error)) from None


def _add_event(answer: Answer, payload: bytes, attempt: Attempt) -> int:
    data = _parse(bytes(payload), "an event of the stream")  # orjson takes no subclass of bytes
    if isinstance(payload, ErrorEvent):
        raise classify_error_object(data.get("error", data) if isinstance(data, dict) else data, hide=attempt.hide)
    return answer.add_chunk(data)


def _parse(data: bytes, what: str) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise make("bad_body", f"not JSON: {what or 'a body without content type'}, {len(data)} bytes") from None


def _request_body(config: EndpointConfig, sampling: SamplingConfig, model: str, *, is_streamed: bool) -> dict[str, Any]:
    """Return all of the request but its messages. extra_body wins over the other settings; a null removes one."""
    body: dict[str, Any] = {
        "model": model,
        config.max_tokens_name: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": list(sampling.stop) or None,
        "seed": sampling.seed,
        **sampling.extra_body,
        "stream": is_streamed,
    }
    if body["stream"] and config.include_usage:
        body["stream_options"] = {"include_usage": True}
    return {name: value for name, value in body.items() if value is not None}
