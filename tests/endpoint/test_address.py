"""Which URL and which key."""

import pytest

from evalpipe.config import EndpointConfig
from evalpipe.endpoint.address import (
    derive_deadline,
    ignored_proxy,
    is_private,
    normalise_base_url,
    resolve_base_url,
)
from evalpipe.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1", "http://localhost:8000/v1"),
        (" HTTP://localhost:8000/v1// ", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/chat/completions", "http://localhost:8000/v1"),
        ("http://localhost:8000/chat/completions/", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/models", "http://localhost:8000/v1"),
        ("https://example.com/openai/v3", "https://example.com/openai/v3"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_any_usual_form_of_the_url_works(given, expected):
    """What people copy from a manual or a curl command leads to the same place."""
    assert normalise_base_url(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        "localhost:8000",
        "ftp://localhost",
        "http://",
        "http://a:b@localhost",
        "http://localhost/v1?x=1",
        "http://h:x/v1",
    ],
)
def test_a_url_that_cannot_work_is_refused(given):
    """Before any work starts, and without repeating a password."""
    with pytest.raises(ConfigError, match="base URL") as caught:
        normalise_base_url(given)

    assert "a:b" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("[::1]", True),
        ("10.1.2.3", True),
        ("100.64.0.1", True),
        ("vllm", True),
        ("vllm.default.svc.cluster.local", True),
        ("gpu.internal", True),
        ("example.com", False),
        ("8.8.8.8", False),
        ("169.254.169.254", False),
    ],
)
def test_private_hosts_are_known(host, expected):
    """Link-local is not private: a cloud's metadata service lives there."""
    assert is_private(f"http://{host}:80/v1") is expected


@pytest.mark.parametrize("url", ["http://example.com/v1", "http://169.254.169.254/v1", "https://169.254.169.254/v1"])
def test_an_unsafe_address_is_refused_unless_allowed(url):
    """Key and prompts do not leave the house in clear by mistake."""
    with pytest.raises(ConfigError, match="allow_insecure"):
        resolve_base_url(EndpointConfig(base_url=url), {})

    assert resolve_base_url(EndpointConfig(base_url=url, allow_insecure=True), {}) == url


def test_the_environment_gives_the_url_that_config_does_not():
    """OPENAI_BASE_URL is honoured, config wins, and with neither the message says what would do."""
    environ = {"OPENAI_BASE_URL": "http://vllm:1"}

    assert resolve_base_url(EndpointConfig(), environ) == "http://vllm:1/v1"
    assert resolve_base_url(EndpointConfig(base_url="https://example.com"), environ) == "https://example.com/v1"
    with pytest.raises(ConfigError, match="--base-url"):
        resolve_base_url(EndpointConfig(), {})


@pytest.mark.parametrize(("max_tokens", "expected"), [(1, 120.1), (2048, 324.8), (100_000, 3600.0)])
def test_the_deadline_follows_from_max_tokens(max_tokens, expected):
    """Two minutes, a second for ten tokens, an hour at most."""
    assert derive_deadline(max_tokens) == pytest.approx(expected)


def test_a_proxy_that_is_not_obeyed_is_named():
    """Whoever set a proxy must hear that it is not used; whoever asked for it must not."""
    assert ignored_proxy(EndpointConfig(), {"https_proxy": "x"}) == "https_proxy"
    assert ignored_proxy(EndpointConfig(trust_env=True), {"https_proxy": "x"}) == ""
    assert ignored_proxy(EndpointConfig(), {"HTTP_PROXY": ""}) == ""
