"""Prompts and keys go where the user's settings say, encrypted where the network is public, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from endpoint.rawserver import RawServer, completion, response, serve

from evalpipe.config import EndpointConfig
from evalpipe.endpoint.address import resolve_base_url
from evalpipe.endpoint.preflight import preflight
from evalpipe.errors import ConfigError, RunFatal

PROMPT_WORDS = b"messages"


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v1",
        "http://8.8.8.8:8000/v1",
        "http://[2606:4700::1111]/v1",
        "http://example.com.:80",
        "HTTP://EXAMPLE.COM",
    ],
)
def test_plain_http_to_a_public_host_is_refused(url: str):
    """Whatever way it is written; the message says what would do."""
    with pytest.raises(ConfigError, match=r"use https, or set endpoint\.allow_insecure"):
        resolve_base_url(EndpointConfig(base_url=url), {})


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "10.0.0.7", "192.168.1.4:8000", "[::1]:8000", "vllm"])
def test_plain_http_inside_the_house_is_allowed(host: str):
    """Loopback, private networks, and names that no public DNS knows."""
    assert resolve_base_url(EndpointConfig(base_url=f"http://{host}/v1"), {}) == f"http://{host}/v1"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",  # the same inside an IPv6 address
        "2852039166",  # the same as one number, which every resolver takes
        "0xa9fea9fe",
        "169.254.43518",
        "metadata.google.internal",
        "metadata.google.internal.",
        "[fd00:ec2::254]",
        "100.100.100.200",
    ],
)
def test_a_clouds_metadata_service_is_no_endpoint(scheme: str, host: str):
    """It hands out the machine's credentials to whoever asks; only allow_insecure lets it through."""
    url = f"{scheme}://{host}/v1"

    with pytest.raises(ConfigError, match="allow_insecure"):
        resolve_base_url(EndpointConfig(base_url=url), {})
    assert resolve_base_url(EndpointConfig(base_url=url, allow_insecure=True), {}) == url


@pytest.mark.parametrize("url", ["https://user:canary@example.com/v1", "https://canary@example.com"])
def test_a_key_inside_a_url_is_refused_and_not_shown(url: str):
    """URLs are stored with every row."""
    with pytest.raises(ConfigError) as refused:
        resolve_base_url(EndpointConfig(base_url=url), {})

    assert "canary" not in str(refused.value)


@contextmanager
def proxies(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[None]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, url)
    yield


@pytest.mark.network
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_a_redirect_ends_the_look_and_the_other_server_hears_nothing(status: str):
    """A redirect would post the prompt again to whoever it names."""

    async def main() -> tuple[RunFatal | None, RawServer]:
        async with serve((response(completion()),)) as other:
            moved = response(b"", status=status, headers=f"Location: {other.url}/chat/completions\r\n")
            models = response({"data": [{"id": "m"}]})
            async with serve((models,), (moved,)) as server:
                try:
                    await preflight(EndpointConfig(base_url=server.url, model="m"))
                except RunFatal as error:
                    return error, other
                return None, other

    error, other = asyncio.run(main())

    assert error is not None and error.failure.kind == "redirected"
    assert (other.connections, other.requests) == (0, [])


@pytest.mark.network
def test_a_proxy_of_the_environment_hears_nothing(monkeypatch: pytest.MonkeyPatch):
    """HTTP_PROXY would see key and prompt in clear; it is obeyed only with endpoint.trust_env."""

    async def main() -> tuple[RawServer, RawServer]:
        models, answer = (response({"data": [{"id": "m"}]}),), (response(completion()),)
        async with serve(models, answer) as server, serve(answer) as proxy:
            with proxies(monkeypatch, proxy.url.removesuffix("/v1")):
                await preflight(EndpointConfig(base_url=server.url, model="m", stream="none"))
            return server, proxy

    server, proxy = asyncio.run(main())

    assert any(PROMPT_WORDS in body for _, body in server.requests)
    assert proxy.connections == 0
