"""The client against a server of literal bytes: what is sent, what is read, and how each fault ends."""

import asyncio
import gzip
import pickle
import time
import traceback

import orjson
import pytest
from rawserver import (
    CLOSE,
    HANG,
    RESET,
    STREAM,
    STREAM_END,
    STREAM_HEAD,
    completion,
    delta,
    event,
    piece,
    response,
    serve,
)

from evalpipe.config import EndpointConfig, SamplingConfig
from evalpipe.control.quota import Meter, Told
from evalpipe.endpoint.client import Endpoint
from evalpipe.endpoint.transport import http_client
from evalpipe.errors import ConfigError, EndpointError, ItemRefused, Paused, Retryable, RunFatal
from evalpipe.records import Key, Request, Status

pytestmark = pytest.mark.network

KEY = "canary-4711-secret"
PROMPT = "what is forty plus two?"
REQUEST = Request(Key(3), "i3", ({"role": "user", "content": PROMPT},), PROMPT, "0" * 64)


class Counter:
    def __init__(self):
        self.firsts, self.total = 0, 0

    def first_token(self):
        self.firsts += 1

    def tokens(self, count):
        self.total += count


def endpoint(url, *, cap=4, sampling=None, environ=None, on_quota=None, **config):
    return Endpoint(
        EndpointConfig(api_key_env="K", **config),
        sampling or SamplingConfig(),
        model="m",
        base_url=url,
        cap=cap,
        environ=environ or {"K": KEY},
        on_quota=on_quota,
    )


def ask(*replies, times=1, deadline_s=5.0, trace=None, progress=None, sampling=None, **config):
    """Send the request so many times, one after another; return the server and what came of each."""

    async def main():
        async with serve(*replies) as server:
            client = endpoint(server.url, sampling=sampling, **config)
            results = []
            for _ in range(times):
                try:
                    sent = client.send(REQUEST, trace=trace, deadline_s=deadline_s, progress=progress)
                    results.append(await sent)
                except EndpointError as error:
                    results.append(error)
            await client.aclose()
            return server, results

    return asyncio.run(main())


def test_a_stream_becomes_a_completion():
    """Text, finish, usage and identity are read; the timings are in order."""
    progress = Counter()

    _, [done] = ask(STREAM, progress=progress)

    assert (done.text, done.finish_reason, done.status, done.model) == ("four two", "stop", Status.OK, "m-1")
    assert (done.prompt_tokens, done.output_tokens, done.cached_tokens, done.usage_source) == (7, 3, 4, "server")
    assert 0 < done.ttft_s <= done.rtt_s < 5
    assert done.request_id == "r-1"
    assert (progress.firsts, progress.total) == (1, 2)


def test_the_first_token_is_stamped_when_it_arrives():
    """A role chunk is no token, and what comes later does not move the stamp."""
    _, [done] = ask((STREAM_HEAD, delta("", role="assistant"), 0.1, delta("a"), 0.1, delta("b", finish="stop"), CLOSE))
    _, [whole] = ask((*STREAM[:2], 0.1, b"".join(STREAM[2:])))

    assert isinstance(done, Retryable)  # the body was cut: chunked, without its last chunk
    assert 0.1 <= whole.ttft_s == whole.rtt_s < 0.3


def test_a_body_becomes_a_completion():
    """Without streaming there is no first token, and everything else is there."""
    progress = Counter()

    server, [done] = ask((response(completion()),), stream="none", progress=progress)

    assert (done.text, done.status, done.output_tokens, done.ttft_s, done.tpot_s) == (
        "four two",
        Status.OK,
        3,
        None,
        None,
    )
    assert orjson.loads(server.requests[0][1])["stream"] is False
    assert progress.firsts == 0


def test_a_server_that_does_not_stream_is_still_understood():
    """A whole JSON body in answer to a streaming request is an answer."""
    _, [done] = ask((response(completion()),))

    assert (done.text, done.ttft_s) == ("four two", None)


def test_the_request_holds_what_was_configured():
    """Unset settings are not sent; extra_body is laid over the rest, and its null removes a setting."""
    sampling = SamplingConfig(
        temperature=0.5, max_tokens=9, stop=("X",), extra_body={"max_tokens": None, "max_completion_tokens": 9}
    )

    server, _ = ask(STREAM, sampling=sampling, trace="run/3")
    head, body = server.requests[0]

    assert orjson.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0.5,
        "max_completion_tokens": 9,
        "stop": ["X"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert head.startswith("POST /v1/chat/completions ")
    assert server.header("Authorization") == f"Bearer {KEY}"
    assert server.header("X-Evalpipe") == "run/3"
    assert server.header("Accept-Encoding") == "identity"


def test_headers_query_and_the_place_of_the_key_are_the_providers():
    """Azure: the key in a header of its own, the version of the API in the query, an organisation beside them."""
    config = {
        "headers": {"OpenAI-Organization": "org"},
        "query": {"api-version": "2026-01-01"},
        "key_header": "api-key",
    }

    server, _ = ask((response(completion()),), stream="none", **config)

    first_line = server.requests[-1][0].splitlines()[0]
    assert first_line.startswith("POST /v1/chat/completions?api-version=2026-01-01 ")
    assert (server.header("api-key"), server.header("Authorization")) == (KEY, None)
    assert server.header("OpenAI-Organization") == "org"


def test_a_file_that_holds_no_certificates_is_named(tmp_path):
    """The user reads which setting and which file."""
    (tmp_path / "ca.pem").write_text("no certificate")

    for name, why in (("ca.pem", "PEM"), ("gone.pem", "No such file")):
        with pytest.raises(ConfigError, match=rf"endpoint\.ca_file .*{name}: .*{why}"):
            http_client(EndpointConfig(ca_file=str(tmp_path / name)), cap=1)


def test_nothing_is_asked_that_was_not_wanted():
    """No trace header by itself, no stream_options where a gateway refuses them."""
    server, _ = ask(STREAM, include_usage=False)

    assert server.header("X-Evalpipe") is None
    assert "stream_options" not in orjson.loads(server.requests[0][1])


def test_connections_are_kept():
    """Streams, bodies and errors read to their end leave the connection for the next request."""
    server, results = ask(STREAM, (response({"error": "x"}, status="500 Oops"),), STREAM, times=4)

    assert [type(result).__name__ for result in results] == ["Completion", "Retryable", "Completion", "Completion"]
    assert server.connections == 1


def test_as_many_connections_as_the_cap_are_kept():
    """Above 100 in flight the SDK's pool would reconnect all the time; this one grows with the cap."""

    async def main():
        async with serve((0.05, *STREAM)) as server:
            client = endpoint(server.url, cap=120)
            for _ in range(2):
                await asyncio.gather(*[client.send(REQUEST, deadline_s=10) for _ in range(120)])
            await client.aclose()
            return server.connections

    assert asyncio.run(main()) == 120


FAULTS = {
    "hang": ((HANG,), Retryable, "timeout"),
    "slow head": ((b"HTTP/1.1 200 OK\r\n", *[b"X-A: 1\r\n", 0.05] * 20), Retryable, "timeout"),
    "slow body": ((STREAM_HEAD, *[delta("x"), 0.05] * 20, HANG), Retryable, "timeout"),
    "close": ((CLOSE,), Retryable, "reset"),
    "reset": ((RESET,), Retryable, "reset"),
    "not http": ((b"SSH-2.0-x\r\n\r\n", CLOSE), Retryable, "bad_body"),
    "cut body": ((response(completion())[:-20], CLOSE), Retryable, "cut"),
    "cut stream": ((*STREAM[:4], CLOSE), Retryable, "cut"),
    "reset stream": ((*STREAM[:4], 0.02, RESET), Retryable, "cut"),
    "html": ((response(b"<html>hello</html>", content_type="text/html"),), Retryable, "bad_body"),
    "html as stream": ((response(b"<html>\n\n</html>", content_type="text/event-stream"),), Retryable, "no_answer"),
    "empty body": ((response(b""),), Retryable, "bad_body"),
    "cut json": ((response(b'{"choices": ['),), Retryable, "bad_body"),
    "bad utf-8": ((response(b'{"choices": "\xff"}'),), Retryable, "bad_body"),
    "nan": (
        (response(b'{"choices": [{"message": {"content": NaN}, "finish_reason": "stop"}]}'),),
        Retryable,
        "bad_body",
    ),
    "list": ((response([1, 2]),), Retryable, "bad_body"),
    "null": ((response(b"null"),), Retryable, "bad_body"),
    "error in 200": ((response({"error": {"code": "rate_limit_exceeded"}}),), Paused, "rate_limited"),
    "no choices": ((response({"choices": []}),), Retryable, "no_answer"),
    "null content": ((response(completion(None)),), Retryable, "no_answer"),
    "no finish": ((response(completion(finish=None)),), Retryable, "no_finish"),
    "stream without finish": ((*STREAM[:4], event(b"[DONE]"), STREAM_END), Retryable, "no_finish"),
    "only done": ((STREAM_HEAD, event(b"[DONE]"), STREAM_END), Retryable, "no_answer"),
    "bad event": ((*STREAM[:3], event(b"{oops"), STREAM_END), Retryable, "bad_body"),
    "bad utf-8 event": ((*STREAM[:3], event(b'{"choices": "\xff"}'), STREAM_END), Retryable, "bad_body"),
    "list event": ((*STREAM[:3], event([1]), STREAM_END), Retryable, "bad_body"),
    "overload in stream": ((STREAM_HEAD, event({"error": {"code": "503"}}), STREAM_END), Paused, "overloaded"),
    "error event": (
        (STREAM_HEAD, piece(b'event: error\ndata: {"message": "x"}\n\n'), STREAM_END),
        Retryable,
        "server_error",
    ),
    "oversize body": ((response(completion("x" * 5000)),), ItemRefused, "oversize"),
    "oversize stream": ((STREAM_HEAD, *[delta("x" * 500)] * 9, *STREAM[4:]), ItemRefused, "oversize"),
    "brotli": ((response(b"x", headers="Content-Encoding: br\r\n"),), Retryable, "bad_body"),
    "false gzip": ((response(b"xxxx", headers="Content-Encoding: gzip\r\n"),), Retryable, "bad_body"),
    "gzip bomb": (
        (response(gzip.compress(bytes(10**6)), headers="Content-Encoding: gzip\r\n"),),
        ItemRefused,
        "oversize",
    ),
    "400": ((response({"error": {"message": "no"}}, status="400 Bad"),), ItemRefused, "bad_request"),
    "401": ((response({"error": {"message": "no"}}, status="401 No"),), RunFatal, "auth"),
    "404": ((response(b"nothing here", status="404 No", content_type="text/plain"),), ItemRefused, "not_found"),
    "429": ((response({}, status="429 Slow", headers="Retry-After: 2\r\n"),), Paused, "rate_limited"),
    "quota": ((response({"error": {"code": "insufficient_quota"}}, status="429 Slow"),), RunFatal, "quota"),
    "503": ((response(b"", status="503 Busy"),), Paused, "overloaded"),
    "502 html": ((response(b"<html>", status="502 Bad", content_type="text/html"),), Retryable, "server_error"),
    "401 cut": ((response({"error": "a long text"}, status="401 No")[:-5], CLOSE), RunFatal, "auth"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_class_and_kind(name):
    """No fault is an answer, none is an exception of somebody else, and none outlives its deadline."""
    reply, error, kind = FAULTS[name]
    started = time.monotonic()

    deadline_s = 0.2 if kind == "timeout" else 20.0  # a busy machine is no fault of the server
    _, [failed] = ask(reply, deadline_s=deadline_s, max_response_bytes=4096)

    assert type(failed) is error
    assert failed.failure.kind == kind
    assert 0 < failed.failure.rtt_s < deadline_s + 1
    assert time.monotonic() - started < deadline_s + 1.5


def test_a_closed_port_is_a_failed_connection():
    """Refused is told apart from reset: nothing was sent."""

    async def main():
        async with serve(STREAM) as server:
            pass
        client = endpoint(server.url)
        try:
            await client.send(REQUEST, deadline_s=1)
        finally:
            await client.aclose()

    with pytest.raises(Retryable) as caught:
        asyncio.run(main())

    assert caught.value.failure.kind == "connect_failed"


def test_the_next_request_after_a_fault_succeeds():
    """A broken connection is not used again, and nothing of the broken answer stays."""
    faults = [FAULTS[name][0] for name in ("cut stream", "reset", "bad event", "oversize body", "slow body")]

    for fault in faults:
        _, [failed, done] = ask(fault, STREAM, times=2, deadline_s=1.5, max_response_bytes=4096)

        assert isinstance(failed, EndpointError)
        assert done.text == "four two"


def test_no_redirect_is_followed():
    """The prompt is not carried to another origin; the run stops and says so."""

    async def main():
        async with serve(STREAM) as other:
            moved = response(b"", status="307 Moved", headers=f"Location: {other.url}/chat/completions\r\n")
            async with serve((moved,)) as server:
                client = endpoint(server.url)
                try:
                    await client.send(REQUEST, deadline_s=1)
                except RunFatal as error:
                    return error, other.requests
                finally:
                    await client.aclose()

    error, seen_elsewhere = asyncio.run(main())

    assert error.failure.kind == "redirected"
    assert seen_elsewhere == []


def test_the_wait_that_the_server_asks_for_comes_with_the_failure():
    """Status, Retry-After and request id are kept; they are what the pacer and support need."""
    _, [failed] = ask((response({}, status="429 Slow", headers="Retry-After: 2\r\nX-Request-Id: r-9\r\n"),))

    assert (failed.failure.retry_after_s, failed.failure.request_id, failed.failure.code) == (2.0, "r-9", "429")


@pytest.mark.parametrize(
    "reply",
    [
        (HANG,),
        (RESET,),
        (response({"error": {"message": f"wrong key {KEY} for {PROMPT}"}}, status="401 No"),),
        (response(f"no {KEY} {PROMPT}".encode(), status="500 Oops", content_type="text/plain"),),
        (STREAM_HEAD, event({"error": {"message": f"{KEY} {PROMPT}"}})),
    ],
)
def test_neither_key_nor_prompt_is_in_an_error(reply):
    """Text, repr, traceback, pickle and chained exceptions are clean, and the pickle brings the same error back."""
    _, [failed] = ask(reply, deadline_s=0.2)
    shown = f"{failed} {failed!r} {''.join(traceback.format_exception(failed))}".encode()
    pickled = pickle.dumps(failed)

    assert KEY.encode() not in shown + pickled
    assert PROMPT.encode() not in shown + pickled
    assert (failed.__cause__, failed.__context__) == (None, None)
    assert pickle.loads(pickled).failure == failed.failure


def test_a_refused_key_is_read_again_for_the_next_request(tmp_path):
    """A key that was rotated in its file is in use one refusal later, and neither key shows in an error."""
    path = tmp_path / "key"
    path.write_text("old-key-4711")
    path.chmod(0o600)
    refusal = response({"error": {"message": "old-key-4711 is revoked, new-key-4712 is not"}}, status="401 No")

    async def main():
        async with serve((refusal,), (refusal,), STREAM) as server:
            client = endpoint(server.url, environ={"K_FILE": str(path)})
            failures, sent = [], []
            for write in (lambda: path.write_text("new-key-4712"), lambda: None):
                try:
                    await client.send(REQUEST, deadline_s=5)
                except RunFatal as error:
                    failures.append(str(error))
                sent.append(server.header("Authorization"))
                write()
            await client.send(REQUEST, deadline_s=5)
            await client.aclose()
            return failures, [*sent, server.header("Authorization")]

    failures, sent = asyncio.run(main())

    assert sent == ["Bearer old-key-4711", "Bearer old-key-4711", "Bearer new-key-4712"]
    assert "4711" not in failures[0] and "4711" not in failures[1]


def test_the_key_is_not_in_the_repr_of_the_endpoint():
    """A worker that logs its endpoint shows the address and no more."""

    async def main():
        client = endpoint("http://127.0.0.1:9/v1")
        await client.aclose()
        return repr(client)

    assert asyncio.run(main()) == "Endpoint(http://127.0.0.1:9/v1/, model='m')"


def test_a_prompt_that_cannot_be_encoded_is_refused():
    """Half of a surrogate pair is the item's own fault: it is not sent, and not tried again."""

    async def main():
        async with serve(STREAM) as server:
            client = endpoint(server.url)
            broken = Request(Key(0), "i", ({"role": "user", "content": "\ud800"},), "", "")
            try:
                await client.send(broken, deadline_s=1)
            finally:
                await client.aclose()

    with pytest.raises(ItemRefused) as caught:
        asyncio.run(main())

    assert (caught.value.failure.kind, caught.value.failure.rtt_s) == ("bad_request", 0.0)


@pytest.mark.filterwarnings("ignore:Sending a large body")
@pytest.mark.parametrize("stream", ["all", "none"])
def test_a_server_that_stops_reading_does_not_outlive_the_deadline(stream):
    """Half of a large prompt is read, an answer begins, then nothing moves in either direction."""

    async def main():
        async with serve((STREAM_HEAD, HANG), reads_body=False) as server:
            client = endpoint(server.url, stream=stream)
            large = Request(Key(0), "i", ({"role": "user", "content": "x" * 30_000_000},), "", "")
            started = time.monotonic()
            try:
                await client.send(large, deadline_s=0.5)
            except EndpointError as error:
                return error.failure.kind, time.monotonic() - started
            finally:
                await client.aclose()

    kind, took_s = asyncio.run(main())

    assert kind == "timeout"
    assert took_s < 1.5


def test_cancelling_passes_through():
    """A cancelled attempt ends at once and is no failure of the server."""

    async def main():
        async with serve((HANG,)) as server:
            client = endpoint(server.url)
            task = asyncio.create_task(client.send(REQUEST, deadline_s=60))
            await server.got_request.wait()
            task.cancel()
            try:
                await task
            finally:
                await client.aclose()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


@pytest.mark.parametrize("end", [(HANG,), (0.05, RESET)])
def test_how_a_body_ends_after_done_does_not_matter(end, monkeypatch):
    """All was said at [DONE]: an answer that was paid for is kept, and its time ends there."""
    monkeypatch.setattr("evalpipe.endpoint.client.AFTER_DONE_S", 0.1)

    _, [done] = ask((*STREAM[:-1], *end))

    assert done.text == "four two"
    assert done.rtt_s < 0.5


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    """A proxy would see key and prompt of a plain http URL."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    _, [done] = ask(STREAM)

    assert done.text == "four two"


def test_what_headers_say_of_quotas_is_passed_on():
    """Of an answer as of a refusal."""
    heard = []
    headers = "x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 1\r\n"
    replies = ([response(completion(), headers=headers)], [response({}, status="429 No", headers=headers)])

    async def main():
        async with serve(*replies) as server:
            client = endpoint(server.url, stream="none", on_quota=heard.append)
            await client.send(REQUEST, deadline_s=5.0)
            with pytest.raises(Paused):
                await client.send(REQUEST, deadline_s=5.0)
            await client.aclose()

    asyncio.run(main())

    assert heard == [Told(requests=Meter(60, 1, None))] * 2
