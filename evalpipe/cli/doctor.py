"""`evalpipe doctor`: is this machine fit to run, and what can the endpoint do?"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from evalpipe.cli.doctor_ray import Check, check_ray
from evalpipe.cli.run import AsJson, Debug, load_env_file
from evalpipe.errors import EvalPipeError

PACKAGES = ("ray", "openai", "aiohttp", "pyarrow", "datasets", "numpy", "obstore", "uvloop")
FILES_WANTED = 4096  # a connection is an open file; 1,024 leaves too few beside Ray's own
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux; elsewhere nothing is said of open ports


def doctor(
    base_url: Annotated[str | None, typer.Option(help="Endpoint to look at. Default: OPENAI_BASE_URL.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to look for there.")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", help="Where runs would lie.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what is installed, what machine and Ray allow, and what the endpoint can do; exit 2 if something fails."""
    load_env_file()
    checks = [*_machine(), *_ray(), _store(output), *_endpoint(base_url, model)]
    if as_json:
        print(json.dumps([{"name": c.name, "found": c.found, "ok": c.ok} for c in checks], indent=2))
    else:
        for check in checks:
            mark = {None: "    ", True: "ok  ", False: "FAIL"}[check.ok]
            print(f"{mark} {check.name:16s} {check.found}")
    raise typer.Exit(2 if any(check.ok is False for check in checks) else 0)


def _machine() -> list[Check]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = [Check("python", platform.python_version(), sys.version_info >= (3, 11))]
    for name in PACKAGES:
        try:
            found.append(Check(name, version(name)))
        except PackageNotFoundError:
            found.append(Check(name, "not installed", False))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = "" if soft >= FILES_WANTED else f"; `ulimit -n {FILES_WANTED}` before large limits"
    return [*found, Check("cores", str(cores)), Check("open files", f"{soft}{limit}", soft >= 256)]


def _ray() -> list[Check]:
    return check_ray(os.environ, socket_tables=[path.read_text() for path in SOCKET_TABLES if path.exists()])


def _store(output: str | None) -> Check:
    from evalpipe.config import load_config
    from evalpipe.runtime.place import output_of
    from evalpipe.store.objects import probe
    from evalpipe.store.open import open_store

    try:
        url = f"{output_of(load_config(flags={'run.output': output}))}/doctor-probe"
        probe(open_store(url))
        if "://" not in url:
            _remove_probe(Path(url))
    except EvalPipeError as error:
        return Check("store", str(error), False)
    return Check("store", f"{url.rpartition('/')[0]} can be written, a key not twice", True)


def _remove_probe(folder: Path) -> None:
    for path in (folder / "_probe", folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _endpoint(base_url: str | None, model: str | None) -> list[Check]:
    from evalpipe.config import EndpointConfig
    from evalpipe.endpoint.preflight import preflight

    if base_url is None and "OPENAI_BASE_URL" not in os.environ:
        return [Check("endpoint", "none given (--base-url or OPENAI_BASE_URL)")]
    try:
        looked = asyncio.run(preflight(EndpointConfig(base_url=base_url, model=model)))
    except EvalPipeError as error:
        return [Check("endpoint", str(error), False)]
    usage = {True: "with token counts", False: "without token counts", None: "not seen"}[looked.streams_usage]
    return [
        Check("endpoint", looked.base_url, True),
        Check("models", ", ".join(looked.models_served) or "not listed"),
        Check("streams", usage),
        Check("metrics", looked.metrics_flavour),
        *(Check("note", note) for note in looked.notes),
    ]
