"""What the store asks of storage: a few verbs on whole objects, the same for a folder and for a bucket.

Correctness rests on `put_if_absent` and `get` alone. `list` finds what nobody named (orphans, gaps) and is never
believed to be complete; `put` and `delete` serve derived things. Storage that fails raises OSError with its errno.
"""

from __future__ import annotations

import contextlib
import errno
import re
import uuid
from typing import Protocol

from evalpipe.errors import ConfigError, Resumable, StateError

CONFLICTS = 8  # refusals in a row that left no object behind, before storage is said to fail

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


class NotFound(StateError):
    """No object has this key."""


class ObjectStore(Protocol):
    """Whole objects by key, relative to `url`. Safe to call from several threads and processes."""

    @property
    def url(self) -> str: ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write durably unless the key exists; False when it does.

        False can also mean that an earlier try of this very write got through: `create` compares.
        """

    def put(self, key: str, data: bytes) -> None:
        """Write or replace; a reader sees the old object or the new one, whole."""

    def get(self, key: str) -> bytes:
        """Return the whole object. Raises NotFound."""

    def list(self, prefix: str) -> list[str]:
        """Return the keys that start with prefix, sorted."""

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none."""

    def sweep(self) -> int:
        """Remove what killed writers left half written, none younger than an hour; return how many.

        A writer that was only asleep finds its write failed, and writes again.
        """


def check_key(key: str) -> str:
    """Return the key. Raises StateError for one that is absolute, hidden, climbs out or holds odd characters."""
    if not _KEY.fullmatch(key):
        raise StateError(f"object key must be plain names joined by '/', none starting with a dot, got {key!r}")
    return key


def create(store: ObjectStore, key: str, data: bytes) -> bool:
    """Put if absent where the reply may get lost: True when the object holds exactly these bytes.

    Give bytes that nobody else writes (a nonce inside, a name that never repeats), else a loser believes it won.
    Raises OSError when storage failed and the object is not there (it may still arrive; then a later try says False).
    """
    for _ in range(CONFLICTS):
        try:
            if store.put_if_absent(key, data):
                return True
        except TimeoutError as failure:  # the only failure that leaves open whether it was done
            try:
                return store.get(key) == data
            except NotFound:
                raise failure from None
        with contextlib.suppress(NotFound):  # refused over a conflict that left nothing behind (S3's 409): again
            return store.get(key) == data
    raise OSError(errno.EBUSY, f"cannot write {key} in {store.url}: refused {CONFLICTS} times over conflicting writes")


def probe(store: ObjectStore) -> None:
    """Check that the storage can be written and refuses to write a key twice.

    Raises ConfigError when it cannot be written, Resumable while the disk is full, StateError when it has no
    conditional writes: two drivers could then both believe they own the run.
    """
    key = f"_probe/{uuid.uuid4().hex}"
    try:
        first = store.put_if_absent(key, b"first")
        second = store.put_if_absent(key, b"second")
    except OSError as error:
        passes = error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure = Resumable if passes else ConfigError
        raise failure(f"cannot write to {store.url}: {error.strerror or error}") from error
    with contextlib.suppress(OSError):
        store.delete(key)
    if not first or second:
        raise StateError(
            f"{store.url} does not honour conditional writes (put-if-absent): a second driver could not be kept out;"
            " use a local folder or an object store that has them"
        )
