"""What is refused before a run, and what is only noted."""

import asyncio
import time

import orjson
import pytest
from rawserver import CLOSE, HANG, RESET, STREAM, completion, delta, event, response, serve

from evalpipe.config import EndpointConfig, SamplingConfig
from evalpipe.endpoint.preflight import choose_model, preflight
from evalpipe.errors import ConfigError, RunFatal

MODELS = (response({"data": [{"id": "m-1"}]}),)
METRICS = (response(b"# HELP\nvllm:num_requests_running 0\n", content_type="text/plain"),)
NOT_FOUND = (response({"detail": "Not Found"}, status="404 No"),)
REFUSED_OPTIONS = (response({"error": {"message": "unknown field stream_options"}}, status="400 Bad"),)
STREAM_WITHOUT_USAGE = (*STREAM[:5], event(b"[DONE]"), b"0\r\n\r\n")


def look(*replies, environ=None, sampling=None, **config):
    """Run a preflight against the replies, one a request; return what it found and the bodies it sent."""

    async def main():
        async with serve(*replies) as server:
            found = await preflight(
                EndpointConfig(base_url=server.url, **config), sampling, environ=environ or {"OPENAI_API_KEY": "k"}
            )
            return found, [orjson.loads(body) for _, body in server.requests if body]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("wanted", "served", "expected"),
    [(None, ("a",), "a"), ("a", ("a", "b"), "a"), ("a", (), "a")],
)
def test_the_model_is_chosen(wanted, served, expected):
    """The only one that is served needs no name; where none is listed the given name is trusted."""
    assert choose_model(wanted, served, base_url="u") == expected


@pytest.mark.parametrize(
    ("wanted", "served", "message"),
    [
        (
            "lama-3",
            ("qwen-2", "llama-3"),
            r"not served at u \(served: qwen-2, llama-3\). Did you mean --model llama-3\?",
        ),
        ("x", ("only-one",), "Did you mean --model only-one"),
        ("x", ("aaaa", "bbbb"), "Choose one with --model"),
        (None, ("a", "b"), "serves several: a, b; choose one with --model"),
        (None, (), "does not list what it serves"),
        ("x", tuple(f"model-{i}" for i in range(12)), "model-9 and 2 more"),
    ],
)
def test_a_model_that_is_not_served_is_refused_with_what_is(wanted, served, message):
    """The user reads in one line what was wrong and what would do."""
    with pytest.raises(RunFatal, match=message) as caught:
        choose_model(wanted, served, base_url="u")

    assert caught.value.failure.kind == "no_model"


@pytest.mark.network
def test_all_is_found_at_a_good_server():
    """Model, usage in streams and the flavour of the metrics, for the price of one token."""
    found, sent = look(MODELS, STREAM, METRICS, sampling=SamplingConfig(temperature=0.3, max_tokens=500))

    assert (found.model, found.models_served, found.streams_usage, found.metrics_flavour) == (
        "m-1",
        ("m-1",),
        True,
        "vllm",
    )
    assert found.notes == ()
    assert [(body["max_tokens"], body["temperature"]) for body in sent] == [(1, 0.3)]


@pytest.mark.network
def test_the_name_of_the_bound_on_tokens_is_found():
    """The second request carries the name that the model asks for, and the run goes on with it."""
    refused = response({"error": {"message": "Use 'max_completion_tokens' instead."}}, status="400 Bad")

    found, sent = look(MODELS, (refused,), STREAM, NOT_FOUND)

    assert [body.get("max_completion_tokens") for body in sent] == [None, 1]
    assert "max_tokens" not in sent[1]
    assert (found.config.max_tokens_name, found.config.include_usage) == ("max_completion_tokens", True)
    assert len(found.notes) == 1 and "max_completion_tokens" in found.notes[0]


@pytest.mark.network
def test_a_refused_temperature_is_told_before_any_item():
    """It is not dropped in silence: the line says which setting and how to leave it out."""
    refused = response({"error": {"message": "'temperature' does not support 0"}}, status="400 Bad")

    with pytest.raises(ConfigError, match=r"sampling\.temperature .* --set sampling\.temperature=null leaves it out"):
        look(MODELS, (refused,))


@pytest.mark.network
@pytest.mark.parametrize(
    ("replies", "config", "usage", "note"),
    [
        ((MODELS, STREAM_WITHOUT_USAGE, NOT_FOUND), {}, False, ""),
        ((MODELS, (response(completion()),), NOT_FOUND), {"stream": "none"}, None, ""),
        ((MODELS, REFUSED_OPTIONS, STREAM_WITHOUT_USAGE, NOT_FOUND), {}, False, "refuses stream_options"),
        ((MODELS, REFUSED_OPTIONS, REFUSED_OPTIONS, NOT_FOUND), {}, None, "test request was refused"),
        ((MODELS, (response({}, status="503 Busy"),), NOT_FOUND), {}, None, "got no answer"),
        ((NOT_FOUND, STREAM, NOT_FOUND), {"model": "m"}, True, "does not list its models"),
        (((response({"error": "no"}, status="403 No"),), STREAM, NOT_FOUND), {"model": "m"}, True, "does not list"),
        (
            ((response([1]),), (response([1]),), (response([1]),), STREAM, NOT_FOUND),
            {"model": "m"},
            True,
            "does not list",
        ),
        (((RESET,), MODELS, (*STREAM[:3], CLOSE), (response(b"<html>"),), STREAM, NOT_FOUND), {}, True, ""),
    ],
)
def test_what_may_pass_is_not_refused(replies, config, usage, note):
    """A server that is busy, odd or unlucky once does not stop a run; the user hears what is odd."""
    found, _ = look(*replies, **config)

    assert found.streams_usage is usage
    assert found.metrics_flavour == "none"
    assert [note in line for line in found.notes] == ([True] if note else [])


@pytest.mark.network
@pytest.mark.parametrize(
    ("replies", "config", "kind", "message"),
    [
        ((MODELS,), {"model": "m-2"}, "no_model", "Did you mean --model m-1"),
        (
            ((response({"error": {"message": "bad key"}}, status="401 No"),),),
            {"model": "m"},
            "auth",
            "refuses the key in OPENAI_API_KEY: bad key",
        ),
        (
            ((response({"error": {"message": "bad key"}}, status="401 No"),),),
            {"api_key_env": "K"},
            "auth",
            "refuses a request without a key, K is not set: bad key",
        ),
        ((MODELS, (response({"error": {"code": "insufficient_quota"}}, status="429 No"),)), {}, "quota", "HTTP 429"),
        (
            (MODELS, (response({"error": {"code": "model_not_found"}}, status="404 No"),)),
            {},
            "model_not_found",
            "HTTP 404",
        ),
        ((NOT_FOUND,), {"model": "m"}, "unreachable", "404"),
        (((response(b"<html>", content_type="text/html"),),), {"model": "m"}, "unreachable", "not JSON"),
        (((RESET,),), {}, "unreachable", "no usable server"),
        (
            ((response(b"", status="302 Moved", headers="Location: http://127.0.0.1:9/\r\n"),),),
            {},
            "redirected",
            "HTTP 302",
        ),
    ],
)
def test_what_would_fail_for_every_item_is_refused(replies, config, kind, message):
    """One error that ends the run, before any item is spent."""
    with pytest.raises(RunFatal, match=message) as caught:
        look(*replies, **config)

    assert caught.value.failure.kind == kind


@pytest.mark.network
def test_a_closed_port_is_refused_at_once():
    """Nobody waits for a server that is not there."""

    async def main():
        async with serve(MODELS) as server:
            pass
        await preflight(EndpointConfig(base_url=server.url), environ={})

    started = time.monotonic()
    with pytest.raises(RunFatal, match=r"no usable server at http://127\.0\.0\.1:") as caught:
        asyncio.run(main())

    assert caught.value.failure.kind == "unreachable"
    assert time.monotonic() - started < 2


@pytest.mark.network
def test_a_silent_server_is_refused_within_its_time(monkeypatch):
    """A server that accepts and never answers does not hold the user."""
    monkeypatch.setattr("evalpipe.endpoint.preflight.LIST_TIMEOUT_S", 0.2)

    with pytest.raises(RunFatal, match="no complete answer") as caught:
        look((HANG,))

    assert caught.value.failure.kind == "unreachable"


@pytest.mark.network
def test_an_ignored_proxy_is_noted():
    """Behind a firewall the line explains why nothing answers."""
    found, _ = look(MODELS, STREAM, METRICS, environ={"HTTP_PROXY": "x"})

    assert "HTTP_PROXY is set and ignored" in found.notes[0]


def test_a_missing_url_is_a_matter_of_configuration():
    """No request is made without an address."""
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        asyncio.run(preflight(EndpointConfig(), environ={}))


@pytest.mark.network
def test_one_token_of_thought_is_an_answer():
    """A reasoning model has said nothing yet after one token; that is no failure."""
    thought = (STREAM[0], delta(reasoning_content="h"), delta(finish="length"), STREAM[-2], STREAM[-1])

    found, _ = look(MODELS, thought, METRICS)

    assert (found.streams_usage, found.notes) == (False, ())
