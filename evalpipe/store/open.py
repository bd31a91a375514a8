"""From an address to the storage behind it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from evalpipe.errors import ConfigError
from evalpipe.store.local import LocalStore
from evalpipe.store.objects import ObjectStore

REMOTE_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})


def open_store(url: str) -> ObjectStore:
    """Open the storage that holds one run: a folder path, file://, s3://, gs:// or az://.

    Nothing is contacted or made yet; `objects.probe` does that. Raises ConfigError for another scheme.
    """
    if "://" not in url:
        return LocalStore(Path(url))
    parts = urlsplit(url)
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme not in REMOTE_SCHEMES:
        known = ", ".join(sorted(REMOTE_SCHEMES))
        raise ConfigError(f"no storage for {parts.scheme}://; use a folder path, file:// or one of {known}, got {url}")
    from evalpipe.store.remote import RemoteStore  # obstore is loaded only where a bucket is asked for

    return RemoteStore(url)
