"""OpenAI's shapes, read and written."""

from __future__ import annotations

import json

import pytest

from evalpipe.sim.wire import BadRequest, Trace, read_ask, read_trace


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "sim", "messages": [{"role": "user", "content": "x" * 40}], **fields}).encode()


def test_chat_request_is_read():
    """The last user message is the text; all messages count, four characters a token."""
    messages = [
        {"role": "system", "content": "s" * 40},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None},
    ]
    ask = read_ask(chat(messages=messages, max_tokens=7, stream=True), kind="chat", model="sim")

    assert (ask.text, ask.prompt_tokens, ask.max_tokens, ask.stream) == ("hello", 12, 7, True)
    assert not ask.include_usage


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[]", 400, "must be an object"),
        (chat(model="gpt"), 404, "'gpt' does not exist; served: sim"),
        (chat(messages=[]), 400, "at least one message"),
        (chat(max_tokens=0), 400, "got 0"),
        (chat(n=2), 400, "n must be 1"),
    ],
)
def test_wrong_requests_are_refused(body: bytes, status: int, message: str):
    """Each wrong shape has its status and says what is wrong."""
    with pytest.raises(BadRequest, match=message) as caught:
        read_ask(body, kind="chat", model="sim")

    assert caught.value.status == status


def test_trace_header_is_read():
    """An item may hold slashes and escaped characters."""
    assert read_trace("run/set/a%3B1/2/0/3;5;48") == Trace("run", "set/a;1", 2, 0, 3, 5, 48)
    assert read_trace("nonsense") is None
    assert read_trace(None) is None
