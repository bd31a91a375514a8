"""The one table of what can go wrong with an attempt, and the pure functions that find the row.

Every kind has one row: the class of error (what to do), the outcome for control (what it teaches about load) and a
line for people. Status, code, type and message of a provider are read here and nowhere else. The behaviour behind the
rows was measured: notes/reliability.md section 3.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from evalpipe.control.observation import Outcome
from evalpipe.endpoint.retry_after import retry_after_s
from evalpipe.errors import EndpointError, Failure, ItemRefused, Paused, Retryable, RunFatal

MAX_MESSAGE_CHARS = 300
#: kinds that end a run with exit code 77: the account, not the server, is what cannot go on
KEY_KINDS = frozenset({"auth", "quota"})


@dataclass(frozen=True, slots=True)
class Row:
    """What follows from a kind of failure. line: what happened, in plain English, without a full stop.

    tries: most attempts of an item that may end so, where that is less than endpoint.max_attempts; None: no own bound.
    is_ambiguous: the server may have done the work and billed it, though no answer came.
    """

    error: type[EndpointError]
    outcome: Outcome
    line: str
    tries: int | None = None
    is_ambiguous: bool = False


TABLE: Mapping[str, Row] = {
    # run: no item can succeed
    "auth": Row(RunFatal, Outcome.IGNORED, "the server refuses the API key"),
    "quota": Row(RunFatal, Outcome.IGNORED, "the account's quota or credit is used up"),
    "model_not_found": Row(RunFatal, Outcome.IGNORED, "the server does not have this model"),
    "no_model": Row(RunFatal, Outcome.IGNORED, "the model is not among those the server lists"),
    "redirected": Row(RunFatal, Outcome.IGNORED, "the server redirects elsewhere, which is not followed"),
    "unreachable": Row(RunFatal, Outcome.IGNORED, "no usable server at this address"),
    # item: this item will never succeed as it is
    "bad_request": Row(ItemRefused, Outcome.IGNORED, "the server refuses the request as malformed"),
    "not_found": Row(ItemRefused, Outcome.IGNORED, "the server does not know this path"),
    "too_long": Row(ItemRefused, Outcome.IGNORED, "the prompt does not fit the model's context"),
    "filtered": Row(ItemRefused, Outcome.IGNORED, "the provider's content filter refuses the prompt"),
    "oversize": Row(
        ItemRefused, Outcome.IGNORED, "the response is larger than endpoint.max_response_bytes", is_ambiguous=True
    ),
    # pause: less load, please
    "rate_limited": Row(Paused, Outcome.DROPPED, "the server asks to slow down"),
    "overloaded": Row(Paused, Outcome.DROPPED, "the server is overloaded or not ready"),
    # retry: nothing is known to be wrong with the item
    "server_error": Row(Retryable, Outcome.IGNORED, "the server failed", is_ambiguous=True),
    "try_again": Row(Retryable, Outcome.IGNORED, "the server asks to send the request again"),
    "connect_failed": Row(Retryable, Outcome.IGNORED, "no connection to the server"),
    "reset": Row(Retryable, Outcome.IGNORED, "the connection was closed before the answer began", is_ambiguous=True),
    "cut": Row(Retryable, Outcome.IGNORED, "the answer ended in the middle", is_ambiguous=True),
    # the second try has twice the time; what does not end then is given up
    "timeout": Row(Retryable, Outcome.IGNORED, "no complete answer within the deadline", 2, True),
    "bad_body": Row(
        Retryable, Outcome.IGNORED, "the body is not what an OpenAI-compatible server sends", is_ambiguous=True
    ),
    "no_answer": Row(Retryable, Outcome.IGNORED, "a response without an answer in it", 3, True),
    "no_finish": Row(Retryable, Outcome.IGNORED, "the answer ended without a finish_reason", is_ambiguous=True),
    "unexpected": Row(Retryable, Outcome.IGNORED, "the client failed in a way we do not know", is_ambiguous=True),
}

_KIND_OF_STATUS: Mapping[int, str] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    408: "try_again",
    409: "try_again",
    425: "try_again",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}

#: Codes and types that providers use, as the status they mean. An error inside a 200 has nothing else to go by.
_STATUS_OF_NAME: Mapping[str, int] = {
    "invalid_api_key": 401,
    "authentication_error": 401,
    "authenticationerror": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "notfounderror": 404,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "ratelimiterror": 429,
    "too_many_requests": 429,
    "overloaded": 503,
    "overloaded_error": 529,
    "server_overloaded": 503,
    "engine_overloaded": 503,
    "service_unavailable": 503,
    "serviceunavailableerror": 503,
    "invalid_request_error": 400,
    "badrequesterror": 400,
}

_QUOTA_CODES = frozenset({"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached"})
_QUOTA_SUFFIXES = ("_spend_limit_exceeded", "_usage_limit_exceeded")
_MODEL_CODES = frozenset({"model_not_found", "invalid_model"})
_LENGTH_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"})
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "content_filtered"})

_MODEL_TEXT = re.compile(r"\bmodel\b.{0,160}\b(does not exist|doesn't exist|not found|is not served)", re.I | re.S)
_LENGTH_TEXT = re.compile(
    r"context.?length|context.?size|context.?window|maximum.?context|maximum.?input|maximum model length|"
    r"(prompt|input) is too long|request too large for",
    re.I,
)
_FILTER_TEXT = re.compile(r"content.?filter|content management policy|content policy|flagged by moderation", re.I)

_SECRETS = re.compile(
    r"(?i)bearer\s+[^\s\"',;]+"
    r"|\b(?:sk|rk|pk|hf|gsk|xai|nvapi)[-_][\w\-*.]{6,}"
    r"|(?<=api_key=)[^\s&\"']+|(?<=api-key: )\S+"
)
_SHORTEST_SECRET = 8  # "none" and "test" are words, not secrets


def make(
    kind: str, message: str = "", *, code: str = "", retry_after_s: float | None = None, request_id: str = ""
) -> EndpointError:
    """Build the error of a kind, its class taken from the table; without a message the table's line is used."""
    row = TABLE[kind]
    failure = Failure(
        kind=kind, code=code, message=message or row.line, retry_after_s=retry_after_s, request_id=request_id
    )
    return row.error(failure)


def outcome_of(kind: str) -> Outcome:
    """Return what an attempt of this kind teaches about load. Nothing for an unknown kind."""
    if kind == "ok":
        return Outcome.OK
    row = TABLE.get(kind)
    return row.outcome if row else Outcome.IGNORED


def classify_status(
    status: int,
    *,
    code: str = "",
    error_type: str = "",
    message: str = "",
    headers: Mapping[str, str] | None = None,
    now: float = 0.0,
    hide: Iterable[str] = (),
) -> EndpointError:
    """Find the row of a response that is not a success.

    code, error_type, message: of the provider's error object, "" where it has none. headers: of the response.
    now: seconds since the Unix epoch, for a Retry-After that is a date. hide: texts (key, prompts) to keep out.
    """
    fields = {name.lower(): value for name, value in (headers or {}).items()}
    kind = _kind(status, names={code.lower(), error_type.lower()} - {""}, message=message)
    shown = redact(message, hide=hide) or TABLE[kind].line
    return make(
        kind,
        f"{shown} (HTTP {status})" if f"{status}" not in shown else shown,
        code=redact(code, hide=hide) or str(status),
        retry_after_s=retry_after_s(fields, now=now),
        request_id=redact(fields.get("x-request-id", ""), hide=hide),
    )


def _kind(status: int, *, names: set[str], message: str) -> str:
    if 300 <= status < 400:
        return "redirected"
    if names & _QUOTA_CODES or any(name.endswith(_QUOTA_SUFFIXES) for name in names):
        return "quota"
    if names & _LENGTH_CODES or (status not in (401, 403, 404) and _LENGTH_TEXT.search(message)):
        return "too_long"  # whatever the status: proxies wrap it as 500, which must not be retried
    if names & _FILTER_CODES or (status in (400, 403, 422) and _FILTER_TEXT.search(message)):
        return "filtered"
    if names & _MODEL_CODES or (status in (400, 404) and _MODEL_TEXT.search(message)):
        return "model_not_found"
    return _KIND_OF_STATUS.get(status) or ("bad_request" if status < 500 else "server_error")


def classify_body(
    status: int, body: bytes, *, headers: Mapping[str, str] | None = None, now: float = 0.0, hide: Iterable[str] = ()
) -> EndpointError:
    """Find the row of a response that is not a success, from its raw body (JSON of any known shape, or text)."""
    code, error_type, message = _error_fields(_parse(body))
    return classify_status(
        status, code=code, error_type=error_type, message=message, headers=headers, now=now, hide=hide
    )


def classify_error_object(
    error: object, *, headers: Mapping[str, str] | None = None, now: float = 0.0, hide: Iterable[str] = ()
) -> EndpointError:
    """Find the row of an error that came inside a 200: in the body, or as an event of a stream.

    Its code or type stands in for the status (vLLM says overload with code "503"); without a known one the server
    failed (500), which is retried.
    """
    code, error_type, message = _error_fields(error if isinstance(error, Mapping) else {"error": error})
    status = int(code) if code.isdecimal() and 400 <= int(code) < 600 else 0
    status = status or _STATUS_OF_NAME.get(code.lower()) or _STATUS_OF_NAME.get(error_type.lower()) or 500
    return classify_status(
        status, code=code, error_type=error_type, message=message, headers=headers, now=now, hide=hide
    )


def _parse(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        text = body[:2000].decode("utf-8", "replace").strip()
        return "an HTML page, not JSON" if text.startswith("<") else text


def _error_fields(data: object) -> tuple[str, str, str]:
    """Return (code, type, message) from the shapes in use: {"error": {..}}, {"error": text}, {"detail": ..}, flat."""
    if not isinstance(data, Mapping):
        return "", "", data if isinstance(data, str) else ""
    inner = data.get("error", data)
    if isinstance(inner, str):
        inner = {"message": inner}
    if not isinstance(inner, Mapping):
        return "", "", ""
    message = inner.get("message") or inner.get("detail") or ""
    return _text(inner.get("code")), _text(inner.get("type")), _message_text(message)


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _message_text(message: object) -> str:
    """Return the message as text. FastAPI's list of details repeats the request's body in "input": take the rest."""
    if isinstance(message, str):
        return message
    details: Sequence[Any] = message if isinstance(message, list) else []
    return "; ".join(f"{detail.get('loc')}: {detail.get('msg')}" for detail in details if isinstance(detail, Mapping))


def classify_exception(error: BaseException) -> EndpointError:
    """Find the row of an exception of openai, httpx2, aiohttp or Python. Its text is dropped: it may hold anything.

    The whole chain is looked at, because the wrappers mislead: the SDK's transport reports a server that closed the
    connection as a connect timeout.
    """
    if isinstance(error, EndpointError):
        return error
    chain = _chain(error)
    for types, kind in _exception_rows():
        for link in chain:
            if isinstance(link, types):
                return make(kind, f"{TABLE[kind].line} ({type(link).__name__})")
    return make("unexpected", f"{TABLE['unexpected'].line} ({type(error).__name__})")


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _exception_rows() -> Sequence[tuple[tuple[type[BaseException], ...], str]]:
    """Return (types, kind), the first match wins: the inner library's types before the wrappers'."""
    import ssl  # here, so that readers of the table do not load an HTTP stack

    import aiohttp
    import httpx2

    return (
        ((aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError, aiohttp.ClientSSLError), "connect_failed"),
        ((aiohttp.ClientPayloadError,), "cut"),
        ((aiohttp.ServerDisconnectedError,), "reset"),
        ((aiohttp.ServerTimeoutError,), "timeout"),
        ((aiohttp.ClientOSError, aiohttp.ClientConnectionError), "reset"),
        ((aiohttp.ClientResponseError,), "bad_body"),
        ((ConnectionRefusedError, ssl.SSLError), "connect_failed"),
        ((ConnectionError,), "reset"),
        ((TimeoutError, httpx2.TimeoutException), "timeout"),
        ((UnicodeEncodeError,), "bad_request"),  # half of a surrogate pair in the prompt: it can never be sent
        ((httpx2.DecodingError, UnicodeDecodeError, orjson.JSONDecodeError), "bad_body"),
        ((httpx2.TransportError,), "reset"),
    )


def redact(text: str, *, hide: Iterable[str] = ()) -> str:
    """Return text on one line of at most 300 characters, without what looks like a key and without the hidden texts."""
    for secret in hide:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "[hidden]")
    text = " ".join(_SECRETS.sub("[hidden]", text[:10_000]).split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 3] + "..."
