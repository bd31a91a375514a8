"""Which URL, how long: what users write made regular, and what is unsafe refused. Pure."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit, urlunsplit

from evalpipe.config import EndpointConfig
from evalpipe.errors import ConfigError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

BASE_URL_ENV = "OPENAI_BASE_URL"
PROXY_ENV = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")

_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".svc")
#: Where clouds hand out a machine's credentials, besides the link-local range: Google by name, AWS, Alibaba.
_METADATA = frozenset({"metadata", "metadata.google.internal", "fd00:ec2::254", "100.100.100.200"})
_CALLED_PATHS = ("/chat/completions", "/completions", "/embeddings", "/models")

QUEUE_ALLOWANCE_S = 120.0  # waiting and prefill of a loaded server that is still of use
SLOWEST_TOKENS_PER_S = 10.0  # per sequence; large models on loaded servers give 15 and more
LONGEST_DEADLINE_S = 3600.0


def derive_deadline(max_tokens: int) -> float:
    """Return the seconds one attempt may take: 120 + max_tokens / 10, at most 3600 (2048 tokens: 325 s).

    Generous on purpose: an attempt given up too early is paid for twice, one that hangs costs a permit for minutes.
    A server slower than that (a CPU) needs `endpoint.deadline_s`.
    """
    return min(QUEUE_ALLOWANCE_S + max_tokens / SLOWEST_TOKENS_PER_S, LONGEST_DEADLINE_S)


def normalise_base_url(url: str) -> str:
    """Return the URL that paths like `/chat/completions` are appended to, without a trailing slash.

    Accepts it with or without `/v1`, with `/chat/completions`, with trailing slashes; any other path is kept as it is.
    Raises ConfigError for another scheme, no host, a user name or a query in the URL.
    """
    parts = _split(url.strip())
    path = parts.path.rstrip("/")
    for called in _CALLED_PATHS:
        path = path.removesuffix(called)
    return urlunsplit((parts.scheme.lower(), parts.netloc, path.rstrip("/") or "/v1", "", ""))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"base URL cannot be read: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("base URL must not hold a user name or password; the key belongs in OPENAI_API_KEY")
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise ConfigError(f"base URL must be http://HOST[:PORT][/v1] or https://.., got {url!r}")
    if parts.query or parts.fragment:
        raise ConfigError(f"base URL must not hold a query or a fragment (endpoint.query takes one), got {url!r}")
    return parts


def is_private(url: str) -> bool:
    """Tell whether a host is loopback or on a private network, by address or by a name that no public DNS resolves."""
    host = _host_of(url)
    address = _address_of(host)
    if _is_metadata(host, address):
        return False
    if address is None:
        return "." not in host or host.endswith(_PRIVATE_SUFFIXES) or ".svc." in host
    return not address.is_global and not address.is_multicast


def _host_of(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".")


def _address_of(host: str) -> _Address | None:
    """Return the address that a host means, None for a name.

    Also where it is written as resolvers take it (2852039166, 0xa9fea9fe, 169.254.43518) or inside an IPv6 address.
    """
    try:
        address: _Address = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_metadata(host: str, address: _Address | None) -> bool:
    return str(address or host) in _METADATA or (address is not None and address.is_link_local)


def resolve_base_url(config: EndpointConfig, environ: Mapping[str, str]) -> str:
    """Return the normalised URL of config or OPENAI_BASE_URL.

    Raises ConfigError when neither is given, for plain http to a public host, and for link-local addresses (cloud
    metadata services live there); `allow_insecure` permits the last two.
    """
    given = config.base_url or environ.get(BASE_URL_ENV)
    if not given:
        raise ConfigError(f"no endpoint: give --base-url (http://HOST:PORT/v1 or sim://PROFILE) or set {BASE_URL_ENV}")
    url = normalise_base_url(given)
    if not config.allow_insecure and not is_private(url):
        _refuse_unsafe(url)
    return url


def _refuse_unsafe(url: str) -> None:
    host = _host_of(url)
    if _is_metadata(host, _address_of(host)):
        raise ConfigError(
            f"{url} is where clouds hand out a machine's credentials (a link-local or metadata address);"
            " set endpoint.allow_insecure: true if that is meant"
        )
    if url.startswith("http://"):
        raise ConfigError(
            f"plain http to a public host would show key and prompts to the network, got {url};"
            " use https, or set endpoint.allow_insecure: true"
        )


def ignored_proxy(config: EndpointConfig, environ: Mapping[str, str]) -> str:
    """Return the name of a proxy variable that is set and not obeyed, "" if there is none."""
    if config.trust_env:
        return ""
    return next((n for name in PROXY_ENV for n in (name, name.lower()) if environ.get(n)), "")
