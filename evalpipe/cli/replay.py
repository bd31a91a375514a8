"""`evalpipe sim replay RUN`: other laws on the work of a stored run, in virtual time."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from evalpipe.cli.inspect import RunFolder
from evalpipe.cli.run import AsJson, Debug


def replay(
    run: RunFolder,
    laws: Annotated[list[str] | None, typer.Option("--law", help="A law to try; may be given again.")] = None,
    profile: Annotated[
        str | None, typer.Option(help="Server to replay on. Default: one fitted to what the run saw.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run other laws on the recorded work of a run, beside what really happened. Nothing is sent."""
    from evalpipe.api import open_run
    from evalpipe.report.replay import format_replay, replay_run

    stored = open_run(run)
    told = replay_run(stored.store, stored.config.control, laws=laws or (), server=profile)
    print(json.dumps(told.to_dict(), indent=2) if as_json else format_replay(told))
