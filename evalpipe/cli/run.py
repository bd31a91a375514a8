"""`evalpipe run` and `evalpipe resume`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalpipe.errors import ConfigError

if TYPE_CHECKING:
    from evalpipe.api import Run
    from evalpipe.config import Config

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="YAML file of the run.", show_default=False)
]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="a.b=value", help="Any setting, by dotted name.")]
DisplayKind = Annotated[
    str | None,
    typer.Option("--display", metavar="rich|plain|json|none", help="Default: rich on a terminal, else plain."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the final summary as JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
FailOnError = Annotated[
    float | None,
    typer.Option("--fail-on-error", metavar="F", help="Share of items that may fail before the exit code is 3 [0]."),
]
Takeover = Annotated[
    bool | None,
    typer.Option(
        "--takeover/--no-takeover",
        help="Take the run from another driver without watching it first.",
        show_default=False,
    ),
]


def run(
    config: ConfigFile = None,
    model: Annotated[str | None, typer.Option(help="Name of the model to ask for.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Server, or sim://PROFILE. Default: OPENAI_BASE_URL.")] = None,
    dataset: Annotated[str | None, typer.Option(help="File, folder, glob, s3://.. or hf://owner/name.")] = None,
    limit: Annotated[int | None, typer.Option(help="So many items: a seeded, stratified sample.")] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="auto|N|MIN-MAX|MIN-START-MAX", help="Bounds of the one limit; N fixes it.")
    ] = None,
    rpm: Annotated[
        float | None, typer.Option(metavar="N", help="Quota of the key, requests a minute. Default: found out.")
    ] = None,
    tpm: Annotated[float | None, typer.Option(metavar="N", help="The same, tokens a minute.")] = None,
    capacity: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Result of `loadtest capacity`: upper bound and warm start.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: dataset-model-hash.")] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Where runs lie. Default: EVALPIPE_RUNS, else runs/."),
    ] = None,
    workers: Annotated[str | None, typer.Option(metavar="auto|N", help="Worker processes.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="auto|never|always", help="What to do with a run of this name.")
    ] = None,
    takeover: Takeover = None,
    fail_on_error: FailOnError = None,
    settings: Settings = None,
    display: DisplayKind = None,
    as_json: AsJson = False,
    debug: Debug = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")] = False,
) -> None:
    """Evaluate a dataset; run the same command again to go on after any crash."""
    flags = {
        "endpoint.model": model,
        "endpoint.base_url": base_url,
        "dataset.path": dataset,
        "dataset.limit": limit,
        "quota.rpm": rpm,
        "quota.tpm": tpm,
        "run.name": name,
        "run.output": output,
        "run.workers": int(workers) if workers is not None and workers.isdecimal() else workers,
        "run.resume": resume,
        "run.takeover": takeover,
        "run.fail_on_error": fail_on_error,
        **parse_concurrency(concurrency),
    }
    if capacity is not None:
        from evalpipe.cli.capacity_file import capacity_flags

        # what the user says of concurrency wins over the file
        flags = capacity_flags(capacity) | {name: value for name, value in flags.items() if value is not None}
    loaded = _load(config, flags=flags, settings=settings)
    if concurrency is not None and not concurrency.isdecimal() and loaded.control.law == "fixed":
        loaded = _load(config, flags=flags | {"control.law": "auto"}, settings=settings)
    if dry_run:
        from evalpipe.cli.dry_run import dry_run as describe

        describe(loaded, as_json=as_json)
        return
    execute(loaded, display=display, as_json=as_json)


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run, e.g. runs/latest.")],
    failed: Annotated[
        str | None,
        typer.Option("--failed", metavar="[KIND]", help="Only send failed items again: all, or those of one kind."),
    ] = None,
    takeover: Takeover = None,
    fail_on_error: FailOnError = None,
    settings: Settings = None,
    display: DisplayKind = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Go on with a stored run, with the settings it was started with."""
    execute(
        stored_config(run, takeover=takeover, fail_on_error=fail_on_error, settings=settings),
        display=display,
        as_json=as_json,
        retry_failed=failed,
    )


def stored_config(
    run: str, *, takeover: bool | None = None, fail_on_error: float | None = None, settings: list[str] | None = None
) -> Config:
    """Return the settings of a stored run, changed where asked, set to resume it where it lies.

    Raises ConfigError when there is no such run or it has no config.yaml.
    """
    import yaml

    from evalpipe.api import CONFIG_KEY, open_run
    from evalpipe.config import load_config, parse_config
    from evalpipe.store.objects import NotFound

    load_env_file()
    stored = open_run(run)
    try:
        data = yaml.safe_load(stored.store.get(CONFIG_KEY))
    except (NotFound, yaml.YAMLError):
        raise ConfigError(f"{stored.url} has no usable {CONFIG_KEY}; run it again with its original command") from None
    parent, _, name = stored.url.rstrip("/").rpartition("/")
    flags: dict[str, Any] = {"run.name": name, "run.output": parent, "run.resume": "always"}
    flags |= {"run.takeover": bool(takeover), "run.fail_on_error": fail_on_error}
    base = parse_config(data, source=f"{stored.url}/{CONFIG_KEY}")
    return load_config(base=base, overrides=settings or (), flags=flags)


def execute(config: Config, *, display: str | None, as_json: bool, retry_failed: str | None = None) -> None:
    """Run it, show it, and leave with its exit code."""
    from evalpipe import api
    from evalpipe.cli.display import Lasting, make_display

    shown = Lasting(make_display(display or ("none" if as_json else None)))
    try:
        run = api.run(config, retry_failed=retry_failed, show=shown.show, say=shown.say)
    finally:
        shown.close()
    if as_json:
        print(json.dumps(run.summary, indent=2))
    elif display != "json":
        print_ending(run)
    raise typer.Exit(run.exit_code)


def print_ending(run: Run) -> None:
    """Print the table of scores, then where everything is and how to go on."""
    from evalpipe.api import summarise_run
    from evalpipe.report.ending import ending

    print(ending(run.summary, summarise_run(run.store, coverage=run.config.run.coverage)))


def parse_concurrency(text: str | None) -> dict[str, Any]:
    """Read auto, N, MIN-MAX or MIN-START-MAX into settings of `control`. Raises ConfigError."""
    if text is None or text == "auto":
        return {}
    try:
        numbers = [int(part) for part in text.split("-")]
    except ValueError:
        numbers = []
    match numbers:
        case [fixed]:
            return {"control.law": "fixed", "control.start": fixed}
        case [low, high]:
            return {"control.min_limit": low, "control.max_limit": high}
        case [low, start, high]:
            return {"control.min_limit": low, "control.start": start, "control.max_limit": high}
    raise ConfigError(f"--concurrency takes auto, N, MIN-MAX or MIN-START-MAX, got {text!r}")


def load_env_file(path: Path = Path(".env")) -> None:
    """Put the NAME=value lines of .env into the environment; what is set already stays."""
    if not path.is_file():
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name and not name.startswith("#"):
            os.environ.setdefault(name.strip(), value.strip().strip("'\""))


def _load(config: Path | None, *, flags: dict[str, Any], settings: list[str] | None) -> Config:
    from evalpipe.config import load_config

    load_env_file()
    return load_config(config, overrides=settings or (), flags=flags)
