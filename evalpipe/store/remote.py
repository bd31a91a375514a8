"""A bucket as an object store, through obstore: the one place that knows its names and errors.

Credentials and endpoint come from the environment (AWS_*, AWS_ENDPOINT_URL, the cloud's own for gs:// and az://).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from evalpipe.errors import ConfigError
from evalpipe.store.objects import NotFound, check_key

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

# A driver that waits longer than this for one write is better off stopped: its workers hold finished rows in memory.
_REQUEST_TIMEOUT = timedelta(seconds=30)
# Seven tries in some six seconds: a bucket that slows us down is let go in that time, and above us it is tried again.
_RETRY: RetryConfig = {"max_retries": 6, "retry_timeout": timedelta(seconds=30)}


class RemoteStore:
    """Objects below a prefix of a bucket. put_if_absent is a conditional PUT (If-None-Match: *)."""

    def __init__(self, url: str, *, retry: RetryConfig = _RETRY) -> None:
        self.url = url.rstrip("/")
        try:
            self._store = from_url(self.url, client_options=_client_options(self.url), retry_config=retry)
        except (BaseError, ValueError) as error:
            raise ConfigError(f"cannot open {url}: {_first_line(error)}") from error

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See ObjectStore. False also where the client tried again and met its own first try; S3's 409 looks the same.

        Raises TimeoutError where it is not known whether the object was written.
        """
        try:
            with self._translated("write", key):
                self._store.put(check_key(key), data, mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        with self._translated("write", key):
            self._store.put(check_key(key), data, use_multipart=False)

    def get(self, key: str) -> bytes:
        try:
            with self._translated("read", key):
                return self._store.get(check_key(key)).bytes().to_bytes()
        except FileNotFoundError:
            raise NotFound(f"no object {key} in {self.url}") from None

    def list(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0] or None  # obstore lists whole path segments only
        with self._translated("list", prefix):
            paths = [meta["path"] for batch in self._store.list(folder) for meta in batch]
        return sorted(path for path in paths if path.startswith(prefix))

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._translated("delete", key):
            self._store.delete(check_key(key))

    def sweep(self) -> int:
        """Nothing to do: an upload in one request is there whole or not at all."""
        return 0

    @contextlib.contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        """Turn obstore's errors into OSErrors. TimeoutError: the outcome of the request is not known."""
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            text = f"cannot {verb} {key} in {self.url}: {_first_line(error)}"
            raise OSError(_errno_of(error), text) from error


def _errno_of(error: Exception) -> int:
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT
    if isinstance(error, AlreadyExistsError):
        return errno.EEXIST
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return errno.EACCES
    return errno.ETIMEDOUT  # a generic error (reset, timeout, 5xx after retries) leaves open whether it was done


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]  # the rest is a dump of the client's internals


def _client_options(url: str) -> ClientConfig:
    options = {"timeout": _REQUEST_TIMEOUT, "connect_timeout": timedelta(seconds=5)}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if not url.startswith("s3") or not endpoint.startswith("http://"):
        return cast("ClientConfig", options)
    if not _is_loopback(endpoint) and os.environ.get("AWS_ALLOW_HTTP", "").lower() not in ("1", "true"):
        raise ConfigError(
            f"{endpoint} sends keys and data in clear; use https, or set AWS_ALLOW_HTTP=true to accept it"
        )
    return cast("ClientConfig", {**options, "allow_http": True})


def _is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
