"""The options that every `evalpipe loadtest` command has, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from evalpipe.cli.run import AsJson, Debug, DisplayKind, Settings
from evalpipe.errors import ConfigError

if TYPE_CHECKING:
    from evalpipe.config import Config
    from evalpipe.loadtest.arrivals import ArrivalKind
    from evalpipe.loadtest.slo import Slo
    from evalpipe.runtime.load_test import LoadSettings

ARRIVALS: dict[str, ArrivalKind] = {"poisson": "poisson", "constant": "constant"}


@dataclass(frozen=True, slots=True)
class Common:
    """What was given for them. A field's annotation is its option, its default the option's."""

    base_url: Annotated[str | None, typer.Option(help="Server, or sim://PROFILE. Default: OPENAI_BASE_URL.")] = None
    model: Annotated[str | None, typer.Option(help="Name of the model to ask for.")] = None
    arrivals: Annotated[str, typer.Option(metavar="poisson|constant", help="How requests come in open loop.")] = (
        "poisson"
    )
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 0
    slo: Annotated[
        list[str] | None, typer.Option("--slo", metavar="NAME:MS", help="ttft:200, tpot:50, e2el:5000; repeatable.")
    ] = None
    attainment: Annotated[float, typer.Option(help="Share of requests that must meet the limits.")] = 0.99
    prompt_tokens: Annotated[int, typer.Option(help="Length of made-up prompts.", min=1)] = 512
    prompt_sigma: Annotated[float, typer.Option(help="Spread of their lengths, lognormal.", min=0)] = 0.0
    dataset: Annotated[str | None, typer.Option(help="Ask the prompts of a dataset instead.")] = None
    output_tokens: Annotated[
        int | None, typer.Option(help="Length of answers, where the server obeys. Default: as it likes.", min=1)
    ] = None
    most_in_flight: Annotated[int, typer.Option(help="More in flight ends a row as overloaded.", min=1)] = 2_000
    workers: Annotated[int, typer.Option(help="Sender processes: 1 is this one, more are on Ray.", min=1)] = 1
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FOLDER", help="Default: EVALPIPE_RUNS, else runs/.")
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of the folder. Default: loadtest-MODEL.")] = None
    settings: Settings = None
    display: DisplayKind = None
    as_json: AsJson = False
    debug: Debug = False

    def limits(self) -> Slo:
        from evalpipe.loadtest.slo import parse_slo

        return parse_slo(self.slo or (), attainment=self.attainment)

    def config(self) -> Config:
        from evalpipe.cli.run import load_env_file
        from evalpipe.config import load_config

        load_env_file()
        flags: dict[str, Any] = {"endpoint.base_url": self.base_url, "endpoint.model": self.model}
        flags |= {"run.output": self.output, "dataset.path": self.dataset}
        return load_config(flags=flags, overrides=self.settings or ())

    def load_settings(self) -> LoadSettings:
        from evalpipe.runtime.load_test import LoadSettings

        arrivals = ARRIVALS.get(self.arrivals)
        if arrivals is None:
            raise ConfigError(f"--arrivals must be one of {', '.join(ARRIVALS)}, got {self.arrivals!r}")
        return LoadSettings(
            slo=self.limits(),
            seed=self.seed,
            arrivals=arrivals,
            prompt_tokens=self.prompt_tokens,
            prompt_sigma=self.prompt_sigma,
            from_dataset=self.dataset is not None,
            output_tokens=self.output_tokens,
            most_in_flight=self.most_in_flight,
            workers=self.workers,
            name=self.name,
        )


def with_common(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose first parameter is a Common all of its options: typer reads them off a signature."""
    shared = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if each.default is MISSING else each.default,
            annotation=get_type_hints(Common, include_extras=True)[each.name],
        )
        for each in fields(Common)
    ]
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        common = Common(**{parameter.name: given.pop(parameter.name) for parameter in shared})
        command(common, **given)

    call.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    del call.__wrapped__  # else its signature is read
    return call
