"""Each fault as a raw client sees it, and which request meets which."""

from __future__ import annotations

import http.client
import json
import time
import zlib
from collections.abc import Iterator

import pytest

from evalpipe.errors import ConfigError
from evalpipe.sim.ledger import read_ledger
from evalpipe.sim.misbehave import FAULTS, FaultPlan
from evalpipe.sim.process import SimServer

SHARES = {name: 1 / len(FAULTS) for name in FAULTS}
ASKED = 6000


def test_fault_shares_are_met_and_a_retry_draws_again():
    """10 % of keys meet a fault at first, and most of these not at the second asking; seeds repeat."""
    plans = [FaultPlan({"reset": 0.06, "html_200": 0.04}, seed=4) for _ in range(2)]
    first = [[plan.choose(f"key{i}") for i in range(3000)] for plan in plans]
    hit = [i for i, fault in enumerate(first[0]) if fault is not None]
    again = [plans[0].choose(f"key{i}") for i in hit]

    assert first[0] == first[1]
    assert len(hit) / 3000 == pytest.approx(0.1, abs=0.02)
    assert {first[0][i] for i in hit} == {FAULTS["reset"], FAULTS["html_200"]}
    assert sum(fault is not None for fault in again) < len(hit) / 3


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"resett": 0.1}, "did you mean 'reset'"),
        ({"reset": 1.5}, "lies in"),
        ({"reset": 0.6, "hang": 0.6}, "together must be at most 1, got 1.2"),
        ({"reset": {"share": 0.6, "form": 3}}, "takes share, after and until"),
        ({"reset": {"after": 3}}, "takes share, after and until"),
        ({"reset": {"share": 0.6, "after": 9, "until": 9}}, "0 <= after < until, got 9 and 9"),
    ],
)
def test_wrong_shares_are_refused(shares: dict[str, float], message: str):
    """Unknown faults and shares that are no shares."""
    with pytest.raises(ConfigError, match=message):
        FaultPlan(shares, seed=0)


def test_a_fault_may_begin_later_and_end():
    """after and until count the requests the server was asked, from 0."""
    plan = FaultPlan({"insufficient_quota": {"share": 1.0, "after": 3, "until": 5}}, seed=0)

    met = [plan.choose(f"key{i}") for i in range(7)]

    assert [i for i, fault in enumerate(met) if fault is not None] == [3, 4]


def test_the_bomb_is_small_and_its_content_is_not():
    """Two hundred MiB of zeros from less than a megabyte."""
    bomb, unpacked = FAULTS["gzip_bomb"].body, 0
    unpacker = zlib.decompressobj(31)

    while not unpacker.eof and (part := unpacker.decompress(bomb, 2**24)):
        unpacked, bomb = unpacked + len(part), unpacker.unconsumed_tail

    assert len(FAULTS["gzip_bomb"].body) < 2**20
    assert unpacked == 200 * 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimServer]:
    """A server that misbehaves at each request."""
    ledger = tmp_path_factory.mktemp("faults") / "ledger.jsonl"
    with SimServer("vllm", options={"median": 40.0, "sigma": 0.0}, faults=SHARES, ledger=ledger) as started:
        started.ledger = ledger
        yield started


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[str]]:
    """Prompts that meet each fault when they are asked first."""
    plan, found = FaultPlan(SHARES, seed=0), {name: [] for name in FAULTS}
    for i in range(ASKED):
        fault = plan.choose(f"prompt {i}")
        if fault is not None:
            found[fault.name].append(f"prompt {i}")
    return found


def observe(server: SimServer, prompt: str, *, stream: bool, timeout_s: float = 5.0) -> tuple[int, str, bytes, str]:
    """Ask and return (status, content type, body, how it ended); status 0 when no head came."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    body = {"model": "sim", "stream": stream, "messages": [{"role": "user", "content": prompt}]}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return 0, "", b"", type(error).__name__
    parts, end = [], "complete"
    try:
        while data := response.read1():
            parts.append(data)
        if response.length:
            end = "IncompleteRead"
    except (OSError, http.client.HTTPException) as error:
        end = type(error).__name__
    connection.close()
    return response.status, response.getheader("content-type"), b"".join(parts), end


JSON, HTML, SSE = "application/json", "text/html", "text/event-stream; charset=utf-8"
CUT, RESET, SILENT = "IncompleteRead", "ConnectionResetError", "TimeoutError"
AT_DOOR = [
    ("rate_limited", 429, JSON, b'"code":"rate_limit_exceeded"'),
    ("overloaded", 503, JSON, b'"code":"503"'),
    ("server_error", 500, JSON, b'"code":"500"'),
    ("bad_gateway", 502, JSON, b'"code":"502"'),
    ("bad_key", 401, JSON, b'"code":"invalid_api_key"'),
    ("no_model", 404, JSON, b'"code":"model_not_found"'),
    ("insufficient_quota", 429, JSON, b'"type":"insufficient_quota"'),
    ("too_long", 400, JSON, b"context_length_exceeded"),
    ("filtered", 400, JSON, b"content_filter"),
    ("html_200", 200, HTML, b"<html>"),
    ("error_in_200", 200, JSON, b'{"error":'),
    ("empty_choices", 200, JSON, b'"choices":[]'),
    ("null_content", 200, JSON, b'"content":null'),
    ("nan", 200, JSON, b'"content":NaN'),
    ("list_body", 200, JSON, b"[1,2]"),
    ("empty_body", 200, JSON, b""),
    ("bad_json", 200, JSON, b'"content":"cut"'),
    ("bad_utf8", 200, JSON, b"\xff\xfe"),
    ("null_body", 200, JSON, b"null"),
    ("bad_request", 400, JSON, b"messages"),
    ("not_found", 404, JSON, b"no such path"),
    ("too_large", 413, JSON, b"too large"),
    ("unprocessable", 422, JSON, b"not a number"),
    ("too_long_vllm", 400, JSON, b'"code":400'),
    ("too_long_as_500", 500, JSON, b"maximum context length"),
    ("forbidden", 403, JSON, b"permission_error"),
    ("payment_required", 402, JSON, b"pay first"),
    ("credit_exhausted", 429, JSON, b"credit_balance_exhausted"),
    ("spend_limit", 429, JSON, b"_spend_limit_exceeded"),
    ("usage_limit", 429, JSON, b"_usage_limit_exceeded"),
    ("rate_limited_ms", 429, JSON, b"slower"),
    ("rate_limited_date", 429, JSON, b"slower"),
    ("rate_limited_oddly", 429, JSON, b"slower"),
    ("overloaded_529", 529, JSON, b"overloaded_error"),
    ("request_timeout", 408, JSON, b"too long to come"),
    ("conflict", 409, JSON, b"locked"),
    ("too_early", 425, JSON, b"too early"),
    ("gateway_timeout", 504, JSON, b"upstream"),
    ("origin_timeout", 524, JSON, b"timeout occurred"),
    ("redirect", 307, JSON, b""),
    ("gzip_bomb", 200, JSON, b"\x1f\x8b"),
]


@pytest.mark.network
@pytest.mark.parametrize(("name", "status", "content_type", "part"), AT_DOOR)
def test_wrong_answers_at_the_door(server, prompts, name, status, content_type, part):
    """Whole responses that are wrong, the same for streams."""
    for index, stream in enumerate((False, True)):
        seen = observe(server, prompts[name][index], stream=stream)

        assert (seen[0], seen[1], seen[3]) == (status, content_type, "complete")
        assert part in seen[2]


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "stream", "status", "end"),
    [
        ("reset_early", False, 0, RESET),
        ("cut_stream", False, 200, CUT),
        ("cut_stream", True, 200, CUT),
        ("reset", False, 200, RESET),
        ("reset", True, 200, RESET),
        ("no_finish_reason", False, 200, "complete"),
        ("no_finish_reason", True, 200, "complete"),
        ("error_event_in_stream", True, 200, "complete"),
        ("close_early", False, 0, "RemoteDisconnected"),
        ("garbage", False, 0, "BadStatusLine"),
        ("short_body", False, 200, CUT),
        ("short_body", True, 200, CUT),
        ("bare_done", True, 200, "complete"),
        ("overloaded_in_stream", True, 200, "complete"),
        ("overloaded_in_stream", False, 503, "complete"),
        ("named_error_event", True, 200, "complete"),
        ("hang", False, 0, SILENT),
        ("slow_header", False, 0, SILENT),
        ("stall", True, 200, SILENT),
    ],
)
def test_how_broken_answers_end(server, prompts, name, stream, status, end):
    """A cut is a cut, a reset a reset on the wire, silence lasts; none ends with a finish_reason."""
    seen = observe(server, prompts[name][2 + stream], stream=stream, timeout_s=0.1 if end == SILENT else 5.0)

    assert seen[0] == status
    assert seen[3] == end
    assert b'"finish_reason":"stop"' not in seen[2]


@pytest.mark.network
def test_slow_loris_feeds_the_read_timeout(server, prompts):
    """A byte each 0.2 s: no read waits long, and the body never ends."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.5)
    message = {"role": "user", "content": prompts["slow_loris"][0]}
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": "sim", "messages": [message]}))
    response = connection.getresponse()

    assert response.read(3) == b"   "
    connection.close()


@pytest.mark.network
def test_oversize_body_is_longer_than_any_client_should_take(server, prompts):
    """50 MiB of blanks."""
    seen = observe(server, prompts["oversize"][0], stream=False)

    assert (seen[0], len(seen[2]), seen[3]) == (200, 50 * 2**20, "complete")


@pytest.mark.network
def test_an_endless_stream_goes_on_until_the_client_goes(server, prompts):
    """A million chunks; the first thousand come at once, each is a chunk of a chat."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    message = {"role": "user", "content": prompts["endless_stream"][0]}
    body = json.dumps({"model": "sim", "stream": True, "messages": [message]})
    connection.request("POST", "/v1/chat/completions", body)
    response = connection.getresponse()

    lines = [response.readline() for _ in range(2_000)]
    connection.close()

    assert sum(line.startswith(b'data: {"') for line in lines) == 1_000


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("length", b'"finish_reason":"length"'),
        ("filtered_answer", b'"finish_reason":"content_filter"'),
        ("refusal", b'"refusal":"I cannot help with that."'),
        ("wrong_model", b'"model":"another-model"'),
        ("no_usage", b'"finish_reason":"stop"'),
        ("null_choices_chunk", b'"finish_reason":"stop"'),
    ],
)
def test_an_answer_that_is_told_oddly_is_whole(server, prompts, name, part):
    """It ends as an answer should, streamed or not, and the ledger has it as an answer that was given."""
    for index, stream in enumerate((False, True)):
        seen = observe(server, prompts[name][index], stream=stream)

        assert (seen[0], seen[3]) == (200, "complete")
        assert part in seen[2]
        assert (b'"usage"' in seen[2]) == (not stream and name != "no_usage")
        assert (b'"choices":null' in seen[2]) == (stream and name == "null_choices_chunk")
        ledger = read_ledger(server.ledger)
        assert ledger.departures[ledger.arrivals[-1].id].outcome == "completed"


@pytest.mark.network
@pytest.mark.parametrize(("name", "outcome"), [("reset", "cut"), ("html_200", "fault"), ("hang", "fault")])
def test_ledger_names_the_fault(server, prompts, name, outcome):
    """The witness knows what was done to whom; a client that hung up is no longer inside."""
    observe(server, prompts[name][8], stream=True, timeout_s=0.1 if name == "hang" else 5.0)

    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        ledger = read_ledger(server.ledger)
        last = ledger.arrivals[-1]
        if last.id in ledger.departures:
            break
        time.sleep(0.005)  # the server is another process: its ledger can only be looked at
    assert (last.fault, last.in_flight) == (name, 0)
    assert ledger.departures[last.id].outcome == outcome
