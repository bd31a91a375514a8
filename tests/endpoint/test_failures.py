"""The failure table: each fault, as it looks on the wire, has its class and its kind."""

import pickle
import ssl

import aiohttp
import httpx2
import orjson
import pytest

from evalpipe.control.observation import Outcome
from evalpipe.endpoint.failures import (
    TABLE,
    classify_body,
    classify_error_object,
    classify_exception,
    classify_status,
    make,
    outcome_of,
    redact,
)
from evalpipe.errors import ItemRefused, Paused, Retryable, RunFatal

CONTEXT = "This model's maximum context length is 4096 tokens, however you requested 9000 tokens"

STATUSES = [
    (301, "", "", "", RunFatal, "redirected"),
    (307, "", "", "", RunFatal, "redirected"),
    (400, "", "", "bad temperature", ItemRefused, "bad_request"),
    (413, "", "", "", ItemRefused, "bad_request"),
    (422, "", "", "", ItemRefused, "bad_request"),
    (405, "", "", "", ItemRefused, "bad_request"),
    (401, "invalid_api_key", "", "", RunFatal, "auth"),
    (403, "", "", "", RunFatal, "auth"),
    (402, "", "", "", RunFatal, "quota"),
    (429, "insufficient_quota", "", "", RunFatal, "quota"),
    (429, "", "insufficient_quota", "", RunFatal, "quota"),
    (429, "credit_balance_exhausted", "", "", RunFatal, "quota"),
    (403, "project_spend_limit_exceeded", "", "", RunFatal, "quota"),
    (429, "monthly_usage_limit_exceeded", "", "", RunFatal, "quota"),
    (404, "model_not_found", "", "", RunFatal, "model_not_found"),
    (404, "404", "NotFoundError", "The model `x` does not exist.", RunFatal, "model_not_found"),
    (404, "", "", 'model "x" not found, try pulling it first', RunFatal, "model_not_found"),
    (403, "model_not_found", "", "", RunFatal, "model_not_found"),
    (404, "", "", "Not Found", ItemRefused, "not_found"),
    (400, "context_length_exceeded", "", "", ItemRefused, "too_long"),
    (400, "400", "BadRequestError", CONTEXT, ItemRefused, "too_long"),
    (500, "500", "", CONTEXT, ItemRefused, "too_long"),
    (400, "", "exceed_context_size_error", "", ItemRefused, "too_long"),
    (400, "", "", "The decoder prompt is longer than the maximum model length of 512", ItemRefused, "too_long"),
    (429, "rate_limit_exceeded", "tokens", "Request too large for m: limit 10, requested 20", ItemRefused, "too_long"),
    (400, "content_filter", "", "", ItemRefused, "filtered"),
    (400, "", "", "triggering our content management policy", ItemRefused, "filtered"),
    (429, "", "", "", Paused, "rate_limited"),
    (429, "rate_limit_exceeded", "", "", Paused, "rate_limited"),
    (503, "", "", "", Paused, "overloaded"),
    (529, "", "overloaded_error", "", Paused, "overloaded"),
    (408, "", "", "", Retryable, "try_again"),
    (409, "", "", "", Retryable, "try_again"),
    (425, "", "", "", Retryable, "try_again"),
    (500, "", "", "", Retryable, "server_error"),
    (502, "", "", "", Retryable, "server_error"),
    (504, "", "", "", Retryable, "server_error"),
    (524, "", "", "", Retryable, "server_error"),
]


@pytest.mark.parametrize(("status", "code", "error_type", "message", "error", "kind"), STATUSES)
def test_a_status_has_its_class_and_kind(status, code, error_type, message, error, kind):
    """Code, type and message correct what the status alone would say."""
    found = classify_status(status, code=code, error_type=error_type, message=message)

    assert (type(found), found.failure.kind) == (error, kind)
    assert found.failure.code == (code or str(status))
    assert str(status) in found.failure.message


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"error": {"message": "no", "type": "t", "code": "c"}}, "c", "no (HTTP 400)"),
        ({"error": {"message": "no", "code": None}}, "400", "no (HTTP 400)"),
        ({"error": "no"}, "400", "no (HTTP 400)"),
        ({"object": "error", "message": "no", "code": 40303}, "40303", "no (HTTP 400)"),
        ({"detail": "no"}, "400", "no (HTTP 400)"),
        ({"error": [1]}, "400", "the server refuses the request as malformed (HTTP 400)"),
        ([1, 2], "400", "the server refuses the request as malformed (HTTP 400)"),
        (None, "400", "the server refuses the request as malformed (HTTP 400)"),
    ],
)
def test_an_error_body_of_any_known_shape_is_read(body, code, message):
    """Every server has its own shape of error; none of them makes the reader fail."""
    failure = classify_body(400, orjson.dumps(body)).failure

    assert (failure.code, failure.message) == (code, message)


def test_a_validation_error_does_not_repeat_the_request():
    """FastAPI sends the refused body back; only what is wrong with it is kept."""
    detail = [{"loc": ["body", "n"], "msg": "must be positive", "input": {"messages": "the whole prompt"}}]

    message = classify_body(422, orjson.dumps({"detail": detail})).failure.message

    assert message == "['body', 'n']: must be positive (HTTP 422)"


@pytest.mark.parametrize("body", [b"<html>sorry</html>", b"\xff\xfe", b"", b"{cut"])
def test_an_error_body_that_is_not_json_still_has_its_status(body):
    """A proxy's page of HTML with a 502 is a 502."""
    assert classify_body(502, body).failure.kind == "server_error"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "503", "message": "queue full"}, "overloaded"),
        ({"code": 429}, "rate_limited"),
        ({"code": None, "type": "rate_limit_error"}, "rate_limited"),
        ({"type": "overloaded_error"}, "overloaded"),
        ({"type": "BadRequestError", "code": 400, "message": CONTEXT}, "too_long"),
        ({"code": "insufficient_quota"}, "quota"),
        ({"code": "invalid_api_key"}, "auth"),
        ({"code": "something new"}, "server_error"),
        ({"code": 7}, "server_error"),
        ("a text", "server_error"),
        (True, "server_error"),
    ],
)
def test_an_error_inside_a_success_is_judged_by_its_code(error, kind):
    """A stream that began with 200 can still say that the server is overloaded."""
    assert classify_error_object(error).failure.kind == kind


def caused(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), "timeout"),
        (httpx2.ReadTimeout("x"), "timeout"),
        (caused(httpx2.ConnectTimeout("x"), aiohttp.ServerDisconnectedError()), "reset"),
        (caused(httpx2.ConnectTimeout("x"), aiohttp.ClientOSError(104, "reset by peer")), "reset"),
        (caused(httpx2.ConnectTimeout("x"), aiohttp.ConnectionTimeoutError()), "connect_failed"),
        (caused(httpx2.ReadError("x"), aiohttp.ClientPayloadError()), "cut"),
        (ConnectionResetError(), "reset"),
        (BrokenPipeError(), "reset"),
        (ConnectionRefusedError(), "connect_failed"),
        (ssl.SSLError(), "connect_failed"),
        (httpx2.DecodingError("x"), "bad_body"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), "bad_body"),
        (KeyError("x"), "unexpected"),
    ],
)
def test_an_exception_is_judged_by_its_chain(error, kind):
    """What the transport says wins over what its wrappers make of it, and its text is not repeated."""
    found = classify_exception(error)

    assert found.failure.kind == kind
    assert isinstance(found, Retryable)
    assert "peer" not in found.failure.message


def test_an_error_of_ours_passes_unchanged():
    """Classifying twice changes nothing."""
    error = make("filtered", "x")

    assert classify_exception(error) is error


def test_overload_alone_teaches_control_a_drop():
    """Only what says "less load" shrinks the limit; "ok" is a measurement, an unknown kind teaches nothing."""
    dropped = {kind for kind in TABLE if outcome_of(kind) is Outcome.DROPPED}

    assert dropped == {"rate_limited", "overloaded"}
    assert (outcome_of("ok"), outcome_of("no such kind")) == (Outcome.OK, Outcome.IGNORED)


@pytest.mark.parametrize("kind", TABLE)
def test_every_row_builds_an_error_that_survives_pickling(kind):
    """Errors cross process boundaries with all they know, and say something even when the server did not."""
    error = make(kind, code="c", retry_after_s=1.5, request_id="r")

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is TABLE[kind].error
    assert copy.failure == error.failure
    assert TABLE[kind].line in str(copy)


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-abcDEF123456.",
        "header Authorization: Bearer topsecret123",
        "got api_key=topsecret123&x=1",
        "hf_topsecret123 is not valid",
        "my-own-topsecret123 is unknown",
    ],
)
def test_a_message_never_shows_a_key(text):
    """Neither what looks like a key nor the one in use."""
    shown = redact(text, hide=("my-own-topsecret123", "none"))

    assert "secret" not in shown
    assert "abcDEF" not in shown
    assert "[hidden]" in shown


def test_a_message_is_one_short_line():
    """Errors are columns and log lines: 300 characters, no line breaks."""
    shown = redact("a\n b\t" + "x" * 1000)

    assert shown.startswith("a b x")
    assert len(shown) == 300


def test_a_short_word_is_not_taken_for_a_secret():
    """The dummy key "none" must not punch holes into messages."""
    assert redact("there is none", hide=("none",)) == "there is none"
