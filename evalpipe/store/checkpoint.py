"""Shortcuts for replay: the state of the log at some version, compressed. Derived; may be deleted at any time."""

from __future__ import annotations

import hashlib
from typing import cast

import pyarrow as pa

from evalpipe.errors import StateError
from evalpipe.store.entry import entry_key, seal, unseal, version_of
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.state import LogState

FOLDER = "_ckpt/"
KEEP = 2  # the newest, and one more should it be damaged; each is as large as all key sets of the run together


class Ahead(StateError):
    """A sound checkpoint of an entry that the log does not have: entries were lost, and results with them."""


def save(store: ObjectStore, state: LogState) -> None:
    """Write the state under its version, tied to the log entry of that version. Raises OSError."""
    entry = store.get(entry_key(state.version))
    body = {"state": state.to_json(), "entry_sha256": hashlib.sha256(entry).hexdigest()}
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(seal(body))
    store.put(f"{FOLDER}{state.version:010d}.json.zst", sink.getvalue().to_pybytes())
    for key in store.list(FOLDER)[:-KEEP]:
        store.delete(key)


def load_newest(store: ObjectStore) -> LogState | None:
    """Return the newest state that is sound, None when there is none: then the log is replayed from its start.

    Raises Ahead when the log is shorter than a sound checkpoint.
    """
    for key in reversed(store.list(FOLDER)):
        try:
            return load(store, key)
        except Ahead:
            raise
        except StateError:  # derived, so an older one or none does as well; `verify` reports it
            continue
    return None


def load(store: ObjectStore, key: str) -> LogState:
    """Read one checkpoint. Raises StateError when it is damaged or of another log, Ahead when its entry is gone."""
    body = unseal(_decompress(store.get(key), key=key), key=key)
    try:
        state = LogState.from_json(body["state"])
        entry_sha256 = body["entry_sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{key} was written by another version of evalpipe: {error!r}") from error
    try:
        entry = store.get(entry_key(state.version))
    except NotFound as error:
        raise Ahead(f"{key} was made from a log entry that is gone: {error}; restore it from a copy") from None
    if state.version != version_of(key) or hashlib.sha256(entry).hexdigest() != entry_sha256:
        raise StateError(f"{key} was not made from this log")
    return state


def _decompress(data: bytes, *, key: str) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return cast(bytes, stream.read())
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"{key} is damaged: {error}") from error
