"""`evalpipe sim`: the simulated server, and laws raced on it in virtual time."""

from __future__ import annotations

from pathlib import Path
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
        str, typer.Option(help="quick, full: judged cases of every kind; published, laws, servers, wide: tables.")
    ] = "published",
    seeds: Annotated[int | None, typer.Option(help="Runs of each case, each drawn anew; 5 for full.", min=1)] = None,
    law: Annotated[str | None, typer.Option(help="Laws to race, as a,b; else the suite's own.")] = None,
    only: Annotated[str | None, typer.Option(metavar="PATTERN", help="Cases of quick or full, as of files.")] = None,
    processes: Annotated[int | None, typer.Option(help="Of quick and full; else one a core.", min=1)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.parquet", help="A row a case, seed and law.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="The laws on one case over time.")] = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="Keep the best fixed limits that were sought anew.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Race the laws against the best fixed limit, on server models in virtual time."""
    from evalpipe.cli.race import race_suite, race_table
    from evalpipe.sim.profiles import did_you_mean
    from evalpipe.sim.scenarios import SUITES as TABLES
    from evalpipe.sim.suite import SUITES

    laws = tuple(name for name in law.split(",") if name) if law is not None else None
    if suite in SUITES:
        race_suite(
            suite,
            laws=laws,
            seeds=seeds,
            only=only,
            processes=processes,
            out=out,
            plot_file=plot,
            keep=oracle,
            as_json=as_json,
        )
    elif (only, processes, out, plot, oracle) != (None, None, None, None, False):
        raise ConfigError(
            f"--only, --processes, --out, --plot and --oracle are for {' and '.join(SUITES)}, not {suite}"
        )
    elif suite not in TABLES:
        raise ConfigError(f"unknown suite {suite!r}; {did_you_mean(suite, (*SUITES, *TABLES))}")
    else:
        race_table(suite, laws=laws, seeds=seeds or 1, as_json=as_json)


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
