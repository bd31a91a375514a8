"""Where the API key comes from: a variable of the worker's own environment, or a file that a variable names.

`api_key_env: NAME` means NAME, unless NAME_FILE is set: then the key is what that file holds. A file can be changed
while a run goes on (a rotated key); the environment of a process cannot. Keys never travel between processes.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from evalpipe.endpoint.address import is_private
from evalpipe.endpoint.failures import make

DUMMY_KEY = "none"  # the openai client insists on a key; local servers ignore it
FILE_SUFFIX = "_FILE"
MAX_KEY_BYTES = 16_384  # a signed token may be long; a data set is no key


def read_api_key(name: str, *, base_url: str, environ: Mapping[str, str]) -> str:
    """Return the key that `name` or `name`_FILE gives; "none" where there is no key and the host is private.

    Raises RunFatal of kind "auth" when a public host would get no key, the key cannot stand in a header, or its file
    cannot be read or can be read by others than its owner.
    """
    source = key_source(name, environ)
    key = (_read_file(source, environ[source]) if source != name else environ.get(name, "")).strip()
    if not key and is_private(base_url):
        return DUMMY_KEY
    if not key:
        raise make("auth", f"no API key for {base_url}: set {name}, or name another variable in endpoint.api_key_env")
    if not (key.isascii() and key.isprintable()):
        raise make("auth", f"the API key in {source} holds characters that cannot be sent; copy it again")
    return key


def key_source(name: str, environ: Mapping[str, str]) -> str:
    """Return the variable that is looked at: `name`_FILE where it is set, else `name`."""
    return name + FILE_SUFFIX if environ.get(name + FILE_SUFFIX) else name


def has_key(name: str, environ: Mapping[str, str]) -> bool:
    """Tell whether this process was given a key."""
    return bool(environ.get(key_source(name, environ)))


def _read_file(source: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(Path(path).stat().st_mode)
            data = file.read(MAX_KEY_BYTES)
    except OSError as error:
        raise make("auth", f"cannot read the API key: {source} names {path}: {error.strerror}") from None
    if mode & 0o077:
        raise make("auth", f"{source} names {path}, which others can read (mode {mode:04o}); chmod 400 it")
    return data.decode("utf-8", "replace")
