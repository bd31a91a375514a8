"""Where runs lie and what they are called: the one that is meant, found or to be made."""

from __future__ import annotations

import os
import re
from pathlib import Path

from evalpipe.config import Config
from evalpipe.data.files import stem
from evalpipe.errors import ConfigError
from evalpipe.runtime.jobenv import JOB_ENV
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.open import open_store
from evalpipe.store.spec import read_spec

OUTPUT_ENV = "EVALPIPE_RUNS"
MADE_UP_CHARS = 110  # with hash and suffix below the 128 of a run name


def output_of(config: Config) -> str:
    """Return where runs go: run.output, else EVALPIPE_RUNS, else ./runs.

    Raises ConfigError for a relative folder inside a Ray job: its working folder is a copy that is thrown away.
    """
    output = config.run.output or os.environ.get(OUTPUT_ENV) or "runs"
    if JOB_ENV in os.environ and "://" not in output and not Path(output).is_absolute():
        raise ConfigError(
            f"output folder {output!r} is relative, and inside a Ray job that is a throw-away copy;"
            f" give -o an absolute folder or s3://.., or set {OUTPUT_ENV}"
        )
    return output.rstrip("/")


def find_run(config: Config) -> tuple[str, ObjectStore]:
    """Return name and storage of the run that is meant: found, or to be made, as run.resume says."""
    output = output_of(config)
    name = config.run.name or made_up_name(config)
    store = open_store(f"{output}/{name}")
    is_there = exists(store)
    if config.run.resume == "always" and not is_there:
        raise ConfigError(f"no run to resume at {store.url}; leave out --resume always to start it")
    number = 1
    while config.run.resume == "never" and is_there:
        number += 1
        store = open_store(f"{output}/{name}-{number}")
        is_there = exists(store)
    return name if number == 1 else f"{name}-{number}", store


def made_up_name(config: Config) -> str:
    """Return <dataset>-<model>-<8 hex of the semantic settings>, fit for a folder. No time in it: it is found again."""
    told = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stem(config.dataset.path)}-{config.endpoint.model or 'model'}")
    return f"{told[:MADE_UP_CHARS].lstrip('._-') or 'run'}-{config.semantic_hash()[:8]}"


def exists(store: ObjectStore) -> bool:
    try:
        read_spec(store)
    except NotFound:
        return False
    except OSError as error:
        raise ConfigError(f"cannot read {store.url}: {error.strerror or error}") from None
    return True


def local_folder(url: str) -> Path | None:
    return None if "://" in url else Path(url)


def check_writable(folder: Path | None) -> None:
    """Raise ConfigError where the run's folder cannot be made, without making it. None: a bucket, probed later."""
    if folder is None:
        return
    above = next(path for path in (folder, *folder.parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "is not a folder" if not above.is_dir() else "cannot be written"
        raise ConfigError(f"cannot make the run's folder {folder}: {above} {why}")
