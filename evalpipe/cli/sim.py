"""`evalpipe sim`: the simulated server, and laws raced on it in virtual time."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from evalpipe.cli.run import AsJson, Debug
from evalpipe.errors import ConfigError

app = typer.Typer(help="A simulated model server, and laws raced on it in virtual time.", no_args_is_help=True)


@app.command("serve")
def serve(
    profile: Annotated[str, typer.Argument(help="vllm, cliff, cliff-shared, quota-rpm, ..")] = "vllm",
    port: Annotated[int, typer.Option(help="0: any free one.", min=0, max=65535)] = 8000,
    dataset: Annotated[str | None, typer.Option(help="Parquet or JSONL file to answer from.")] = None,
    accuracy: Annotated[float, typer.Option(help="Share of right answers.", min=0, max=1)] = 0.7,
    seed: Annotated[int, typer.Option(help="Of answers, lengths and faults.")] = 0,
    ledger: Annotated[str | None, typer.Option(help="JSONL file that records every request.")] = None,
    faults: Annotated[
        list[str] | None, typer.Option("--fault", metavar="KIND=SHARE", help="Misbehave so often.")
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A number of the profile.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve chat, completions, embeddings, models and metrics on loopback until Ctrl-C."""
    from evalpipe.sim.profiles import profile as find_profile
    from evalpipe.sim.server import serve as run_server

    run_server(
        find_profile(profile, **_pairs(options, flag="--set")),
        port=port,
        dataset=dataset,
        accuracy=accuracy,
        seed=seed,
        ledger=ledger,
        faults={kind: float(share) for kind, share in _pairs(faults, flag="--fault").items()},
    )


@app.command("race")
def race(
    suite: Annotated[
        str, typer.Option(help="published: the publication's experiment; laws: every law on vllm; servers: many.")
    ] = "published",
    seeds: Annotated[int, typer.Option(help="Runs of each case, each with another seed.", min=1)] = 1,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Race the laws against the best fixed limit, on server models in virtual time."""
    from evalpipe.report.race import format_race, to_dict
    from evalpipe.sim.race import run_race

    table = run_race(suite, seeds=tuple(range(seeds)), progress=lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(to_dict(table), indent=2) if as_json else format_race(table))


def _pairs(texts: list[str] | None, *, flag: str) -> dict[str, float | int | str]:
    """Read NAME=VALUE texts; numbers become numbers. Raises ConfigError."""
    pairs: dict[str, float | int | str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{flag} takes NAME=VALUE, got {text!r}")
        pairs[name] = _number(value)
    return pairs


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
