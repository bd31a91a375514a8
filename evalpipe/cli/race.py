"""What `evalpipe sim race` does: run a suite, print its table, write the files asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from evalpipe.errors import ConfigError
from evalpipe.report import race, race_plot
from evalpipe.report import suite as suite_report
from evalpipe.report.suite_file import write_rows
from evalpipe.sim.cases import CASES
from evalpipe.sim.oracle import TABLE, read_table, without_strangers, write_table
from evalpipe.sim.race import run_race
from evalpipe.sim.suite import LAWS, SuiteTable, cases_of, play, run_suite

FULL_SEEDS = 5


def race_table(name: str, *, laws: Sequence[str] | None, seeds: int, as_json: bool) -> None:
    """Race a suite that is a table of contenders."""
    table = run_race(name, seeds=tuple(range(seeds)), laws=laws, progress=_say)
    print(json.dumps(race.to_dict(table), indent=2) if as_json else race.format_race(table))


def race_suite(
    name: str,
    *,
    laws: Sequence[str] | None,
    seeds: int | None,
    only: str | None,
    processes: int | None,
    out: Path | None,
    plot_file: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Race a suite that is judged. keep: write the best fixed limits that were sought anew into the table."""
    if plot_file is not None and len(cases_of(name, only)) != 1:
        raise ConfigError("--plot draws one case; name it with --only, as in --only '64 slots'")
    table = run_suite(
        name,
        laws=laws or LAWS,
        seeds=range(seeds or (FULL_SEEDS if name == "full" else 1)),
        only=only,
        processes=processes or os.cpu_count() or 1,
        progress=_say,
    )
    print(json.dumps(suite_report.to_dict(table), indent=2) if as_json else suite_report.format_suite(table))
    if out is not None:
        with _told(out):
            write_rows(table, out)
    if plot_file is not None:
        _draw(table, plot_file)
    if keep:
        _keep(table)


def _draw(table: SuiteTable, file: Path) -> None:
    """Draw the laws on the table's only case, with its first seed."""
    case, seed = cases_of(table.suite, table.rows[0].case)[0], table.seeds[0]
    scenario, best = case.draw(seed), table.rows[0].limit
    runs = {law: play(scenario, law, seed=seed, limit=best).ours[0] for law in table.laws}
    with _told(file):
        file.write_text(race_plot.plot(f"{case.name} #{seed}", runs, best=best), encoding="utf-8")


def _keep(table: SuiteTable) -> None:
    """Write the best fixed limits that were sought anew beside those of the table; cases that are gone leave it."""
    with _told(TABLE):
        write_table(
            without_strangers({**read_table(), **table.entries}, (case.name for case in CASES if case.is_raced))
        )


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Say in one line that a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
