"""Putting an answer together from parsed JSON, whatever a server may put there."""

import pytest

from evalpipe.endpoint.answer import Answer
from evalpipe.errors import EndpointError
from evalpipe.records import Status


def chunk(finish=None, **delta):
    return {"model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def body(content, finish="stop", **message):
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}


def stream(*chunks):
    answer = Answer()
    for each in chunks:
        answer.add_chunk(each)
    return answer.completion(rtt_s=2.0, ttft_s=1.0, request_id="r")


def whole(data):
    answer = Answer()
    answer.add_body(data)
    return answer.completion(rtt_s=2.0, ttft_s=None, request_id="r")


def test_a_stream_is_joined_and_measured():
    """Text, reasoning and usage each have their place; tpot_s counts the tokens after the first."""
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}

    done = stream(
        chunk(role="assistant", content=""),
        chunk(reasoning_content="hm"),
        chunk(reasoning="m"),
        chunk(content="a"),
        chunk(content="b"),
        chunk(finish="stop"),
        {"choices": [], "usage": usage},
    )

    assert (done.text, done.reasoning, done.status, done.model) == ("ab", "hmm", Status.OK, "m-1")
    assert (done.prompt_tokens, done.output_tokens, done.cached_tokens, done.usage_source) == (7, 5, 4, "server")
    assert (done.rtt_s, done.ttft_s, done.tpot_s) == (2.0, 1.0, 0.25)


def test_only_chunks_with_text_count_as_tokens():
    """The role, the end and the usage of a stream are no first token."""
    answer = Answer()
    chunks = [chunk(role="assistant", content=""), chunk(reasoning="x"), chunk(content="y"), chunk(finish="stop"), {}]

    assert [answer.add_chunk(each) for each in chunks] == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (body("a"), Status.OK, "a"),
        (body(""), Status.OK, ""),
        (body("a", "length"), Status.TRUNCATED, "a"),
        (body(None, "length", reasoning="thinking"), Status.TRUNCATED, ""),
        (body(None, "length"), Status.TRUNCATED, ""),
        (body("a", "content_filter"), Status.FILTERED, "a"),
        (body(None, "content_filter"), Status.FILTERED, ""),
        (body(None, refusal="I will not"), Status.REFUSED, "I will not"),
        (body(None, "tool_calls", tool_calls=[{"id": "1"}]), Status.OK, ""),
    ],
)
def test_an_answer_has_its_status(data, status, text):
    """Truncated, filtered and refused answers are answers; an empty text is one too."""
    done = whole(data)

    assert (done.status, done.text, done.tpot_s) == (status, text, None)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ([1, 2], "bad_body"),
        (None, "bad_body"),
        ("text", "bad_body"),
        ({}, "no_answer"),
        ({"choices": None}, "no_answer"),
        ({"choices": []}, "no_answer"),
        ({"choices": [None]}, "no_answer"),
        ({"choices": [{"message": None, "finish_reason": "stop"}]}, "no_answer"),
        (body(None), "no_answer"),
        (body(1.5), "bad_body"),
        (body(["a"]), "bad_body"),
        (body("a", None), "no_finish"),
        (body("a", 7), "no_finish"),
        (body("a", "abort"), "cut"),
        (body("a", "error"), "cut"),
        ({"error": {"code": "503"}, "choices": []}, "overloaded"),
        ({"error": "boom"}, "server_error"),
    ],
)
def test_what_is_no_answer_never_becomes_one(data, kind):
    """Every broken body is an error of its kind, none an empty text."""
    with pytest.raises(EndpointError) as caught:
        whole(data)

    assert caught.value.failure.kind == kind


@pytest.mark.parametrize(
    "usage", [None, [], {"prompt_tokens": 1}, {"completion_tokens": "5"}, {"completion_tokens": -1}]
)
def test_usage_that_is_none_is_called_none(usage):
    """Without a believable count of output tokens the counts mean unknown."""
    done = whole({**body("a"), "usage": usage})

    assert (done.output_tokens, done.usage_source) == (0, "none")


def test_a_null_error_is_no_error():
    """Some servers send the field with every body."""
    assert whole({**body("a"), "error": None}).text == "a"


def test_the_message_of_an_error_hides_what_it_must():
    """A server that repeats the prompt does not bring it into the log."""
    with pytest.raises(EndpointError) as caught:
        Answer(hide=("the secret prompt",)).add_chunk({"error": {"message": "cannot do: the secret prompt"}})

    assert "secret" not in str(caught.value)
