"""The stream reader: the same payloads however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.endpoint.sse import ErrorEvent, LineTooLong, SseParser

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n"
    b'data: {"a": 1}\r\n\r\n'
    b"id: 7\nretry: 10\ndata:two\n\n"
    b"data: first\ndata: second\r\r"
    b"event: error\ndata: bad\n\n"
    b"event: message\n\n"
    b"data\n\n"
    b"data:  \xc3\xa9\n\n"
    b"data: [DONE]\n\n"
    b"data: never closed\n"
)
PAYLOADS = [b'{"a": 1}', b"two", b"first\nsecond", b"bad", b"", b" \xc3\xa9", b"[DONE]"]


def read(*chunks: bytes) -> list[bytes]:
    parser = SseParser()
    return [payload for chunk in chunks for payload in parser.feed(chunk)]


def test_every_kind_of_line_is_read_as_the_standard_says():
    """LF, CR and CRLF end lines, data lines are joined, an event that is not closed is dropped."""
    assert read(STREAM) == PAYLOADS


def test_only_the_event_named_error_is_marked():
    """The name of an event does not leak into the next one."""
    payloads = read(STREAM)

    assert [type(payload) for payload in payloads if isinstance(payload, ErrorEvent)] == [ErrorEvent]
    assert isinstance(payloads[3], ErrorEvent)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_of_the_stream_yields_the_same_payloads(cuts):
    """Where the network cuts the bytes, between CR and LF too, makes no difference."""
    edges = [0, *sorted(cuts), len(STREAM)]

    assert read(*[STREAM[a:b] for a, b in itertools.pairwise(edges)]) == PAYLOADS


def test_one_byte_at_a_time_yields_the_same_payloads():
    """The worst cut of all is no different either."""
    assert read(*[bytes([byte]) for byte in STREAM]) == PAYLOADS


@given(
    st.lists(st.tuples(st.sampled_from([b"data: ", b"data:", b"x: ", b": ", b""]), st.binary(max_size=9))), st.data()
)
def test_any_bytes_are_read_the_same_in_one_piece_and_in_two(lines, data):
    """No input, however malformed, makes the result depend on the cut."""
    stream = b"".join(head + tail + b"\n" for head, tail in lines)
    cut = data.draw(st.integers(0, len(stream)))

    assert read(stream[:cut], stream[cut:]) == read(stream)


def test_a_payload_comes_with_the_chunk_that_ends_its_event():
    """No event waits for the next chunk: its arrival time would be wrong."""
    parser = SseParser()

    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\n\n") == [b"b"]


@pytest.mark.parametrize("chunks", [[b"x" * 40] * 3, [b"data: " + b"x" * 100 + b"\n\n"]])
def test_a_line_beyond_the_bound_is_refused(chunks):
    """A line that never ends cannot fill the memory, and one that came whole is not let through either."""
    parser = SseParser(max_line_bytes=100)

    with pytest.raises(LineTooLong, match="longer than 100 bytes"):
        for chunk in chunks:
            parser.feed(chunk)
