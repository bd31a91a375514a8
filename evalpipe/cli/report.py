"""`evalpipe report RUN`: one page about a stored run, made anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from evalpipe.cli.inspect import RunFolder
from evalpipe.cli.run import AsJson, Debug

if TYPE_CHECKING:
    from evalpipe.api import Run


def report(run: RunFolder, as_json: AsJson = False, debug: Debug = False) -> None:
    """Write report.html of a run: scores, the limit over time, latency, failures. Nothing is sent."""
    from evalpipe.api import open_run
    from evalpipe.report.page import write_page

    stored = open_run(run)
    address = f"{stored.url}/{write_page(stored.store, _summary(stored))}"
    print(json.dumps({"report": address}) if as_json else address)


def _summary(stored: Run) -> dict[str, Any]:
    """Return what the results say now, beside what the last driver measured of itself, where it came to that."""
    from evalpipe.api import summarise_run
    from evalpipe.errors import EvalPipeError

    try:
        body = stored.summary
    except EvalPipeError:  # a driver that was killed wrote none, or it is damaged
        body = {}
    return {**body, **summarise_run(stored.store, coverage=stored.config.run.coverage).to_dict()}
