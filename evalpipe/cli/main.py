"""The command line: `evalpipe VERB`. Heavy imports happen inside the verbs, so that --help answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from evalpipe.cli import doctor, inspect, loadtest, replay, report, run, sim
from evalpipe.cli.exits import exit_code_of, explain

app = typer.Typer(
    name="evalpipe",
    help="Batch evaluation of OpenAI-compatible LLM servers on Ray, under one limit that latency drives.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("status")(inspect.status)
app.command("verify")(inspect.verify)
app.command("show")(inspect.show)
app.command("score")(inspect.score)
app.command("doctor")(doctor.doctor)
app.command("report")(report.report)
sim.app.command("replay")(replay.replay)
app.add_typer(sim.app, name="sim")
app.add_typer(loadtest.app, name="loadtest")


@app.callback(invoke_without_command=True)
def version_option(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and stop.")
) -> None:
    if version:
        from evalpipe import __version__

        print(f"evalpipe {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code; a mistake of the user is one line on stderr.

    arguments: without the program's name; None: those of this process.
    """
    given = fill_in(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given)
    except KeyboardInterrupt:
        print("stopped before the run began", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if "--debug" in given:
            raise
        print(f"error: {explain(error)}", file=sys.stderr)
        sys.exit(exit_code_of(error))


def fill_in(arguments: Sequence[str]) -> list[str]:
    """Give `--failed` without a kind the value "all": typer knows no options whose value may be left out."""
    followers = [*arguments[1:], "--"]
    return (
        [
            "--failed=all" if word == "--failed" and after.startswith("-") else word
            for word, after in zip(arguments, followers, strict=True)
        ]
        if arguments
        else []
    )


if __name__ == "__main__":
    main()
