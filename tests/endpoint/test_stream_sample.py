"""Streams of a sample: the endpoint streams what somebody looks into, and asks for the rest whole."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from rawserver import STREAM, completion, response, serve

from evalpipe.config import EndpointConfig, SamplingConfig
from evalpipe.endpoint.client import Endpoint
from evalpipe.records import Key, Request

pytestmark = pytest.mark.network

REQUEST = Request(Key(3), "i3", ({"role": "user", "content": "why?"},), "why?", "0" * 64)


class Watched:
    def first_token(self):
        pass

    def tokens(self, count):
        pass


@pytest.mark.parametrize(
    ("stream", "is_watched", "is_streamed"),
    [("all", False, True), ("sample", True, True), ("sample", False, False), ("none", True, False)],
)
def test_what_is_streamed(stream, is_watched, is_streamed):
    """All, none, or those that are watched; a stream asks for its usage, a whole answer has it anyway."""

    async def main():
        async with serve(STREAM if is_streamed else (response(completion()),)) as server:
            client = Endpoint(
                EndpointConfig(api_key_env="K", stream=stream),
                SamplingConfig(),
                model="m",
                base_url=server.url,
                cap=1,
                environ={"K": "key"},
            )
            done = await client.send(REQUEST, deadline_s=5.0, progress=Watched() if is_watched else None)
            await client.aclose()
            return orjson.loads(server.requests[0][1]), done

    body, done = asyncio.run(main())

    assert body["stream"] is is_streamed
    assert ("stream_options" in body) is is_streamed
    assert (done.ttft_s is not None) is is_streamed
