"""Run, resume and read a run from Python. The command line and jobs/ call the same functions.

run = evalpipe.run("configs/logic-5k.yaml")
run.summary["score"]["accuracy"]
run.results()          # datasets.Dataset, one row an item
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evalpipe.config import Config, ScorerConfig, load_config, parse_config
from evalpipe.control.build import resolve_law
from evalpipe.errors import ConfigError, StateError
from evalpipe.report.summary import COLUMNS, Summary, select_newest, summarise
from evalpipe.scoring.scorers import build_scorer
from evalpipe.store import readable
from evalpipe.store.log import read_state
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.open import open_store
from evalpipe.store.rows import read_all, read_results
from evalpipe.store.schema import RESULT_SCHEMA
from evalpipe.store.segments import encode_table
from evalpipe.store.spec import Spec, read_spec
from evalpipe.store.state import LogState

if TYPE_CHECKING:
    import datasets

    from evalpipe.runtime.driver import Outcome
    from evalpipe.runtime.progress import Progress
    from evalpipe.runtime.session import Session

SUMMARY_KEY = "summary.json"
CONFIG_KEY = "config.yaml"
FAILED_ITEMS = 3  # exit code: complete, but more failed than run.fail_on_error allows


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run. exit_code and why: how the driver that made this object ended, 0 and "" for one that only reads."""

    store: ObjectStore
    exit_code: int = 0
    why: str = ""

    @property
    def url(self) -> str:
        """Folder or bucket address of the run."""
        return self.store.url

    @property
    def name(self) -> str:
        return self.store.url.rstrip("/").rpartition("/")[2]

    @property
    def spec(self) -> Spec:
        return read_spec(self.store)

    @property
    def config(self) -> Config:
        """The resolved settings it was last run with."""
        import yaml

        return parse_config(yaml.safe_load(self.store.get(CONFIG_KEY)), source=f"{self.url}/{CONFIG_KEY}")

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json as the last driver wrote it. Raises NotFound while there is none."""
        return readable.from_json(self.store.get(SUMMARY_KEY), key=SUMMARY_KEY)

    def table(self) -> pa.Table:
        """Return all results, sorted by item_index: the newest answer of each item and repeat, else its failure."""
        return read_all(self.store, read_state(self.store))

    def results(self) -> datasets.Dataset:
        """Return `table()` as a Hugging Face dataset."""
        from evalpipe.data.hub import from_table

        return from_table(self.table())


def run(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    retry_failed: str | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Do what `config` says, or what is left of it, and return the stored run.

    config: settings, a mapping of them, or a YAML file. retry_failed: only send the items again that failed with this
    kind ("all": with any); an answer takes the place of the failure, which is kept too. show: called twice a second
    with the state of the run; say: with single lines for people.
    Raises ConfigError, DataError, RunFatal, StateError; see `evalpipe.errors`.
    """
    from evalpipe.runtime.session import open_session

    if isinstance(config, str | Path):
        config = load_config(config)
    elif isinstance(config, Mapping):
        config = parse_config(config)
    with open_session(config, retry_failed=retry_failed, say=say) as session:
        _greet(session, say)
        outcome = None
        with _run_log(session.folder):
            from evalpipe.runtime.conduct import compact_only, needs_compaction

            if not session.is_complete:
                from evalpipe.runtime.launch import launch  # imports ray, which takes a second

                outcome = launch(session, show=show, say=say)
            elif needs_compaction(session.store, session.state):
                compact_only(session, say=say)
        return conclude(session, outcome)


def open_run(path: str | Path) -> Run:
    """Open a stored run for reading. Raises ConfigError when there is none."""
    text = str(path)
    store = open_store(str(Path(text).resolve()) if "://" not in text else text)
    try:
        read_spec(store)
    except NotFound:
        raise ConfigError(f"no run at {text}: it has no spec.json; `ls` its parent folder for the names") from None
    return Run(store)


def conclude(session: Session, outcome: Outcome | None) -> Run:
    """Write summary.json and settle the exit code."""
    store, config = session.store, session.config
    state = read_state(store)
    summary = summarise_run(store, coverage=config.run.coverage, state=state)
    ending = outcome.ending if outcome is not None else None
    exit_code, why = (ending.exit_code, ending.why) if ending is not None else (0, "")
    failed, expected = summary.items.failed, summary.items.expected or 1
    if exit_code == 0 and failed / expected > config.run.fail_on_error:
        exit_code = FAILED_ITEMS
        why = f"{failed} of {expected} items failed, run.fail_on_error allows {config.run.fail_on_error:g}"
    body = {"run": session.name, "url": store.url, "exit_code": exit_code, "why": why, **summary.to_dict()}
    body["log_version"] = state.version  # `verify` tells whether it is of the log as it is now
    if outcome is not None:
        body |= _speed(session, outcome)
    else:
        body |= {name: value for name, value in _stored_summary(store).items() if name in ("rate", "limit", "bound_by")}
    store.put(SUMMARY_KEY, readable.to_json(body))
    _write_page(store, body)
    _link_latest(session)
    return Run(store, exit_code, why)


def summarise_run(store: ObjectStore, *, coverage: float, state: LogState | None = None) -> Summary:
    """Read what is stored and say it in numbers. state: of the log, None to replay it."""
    spec, state = read_spec(store), state or read_state(store)
    tables = [table.select(list(COLUMNS)) for table in read_results(store, state)]
    table = pa.concat_tables(tables) if tables else RESULT_SCHEMA.empty_table().select(list(COLUMNS))
    return summarise(select_newest(table), expected_items=spec.items, repeats=spec.repeats, coverage=coverage)


def rescore(path: str | Path, scorer: ScorerConfig) -> tuple[Summary, str]:
    """Score the stored answers of a run again; returns the summary and where the new scores were written.

    parts/ stay as they are: scores/<hash of the scorer>.parquet holds item_id, item_index, repeat, generation, score,
    correct, extracted. Raises ConfigError for an impossible scorer, DataError when it cannot score an answer.
    """
    from evalpipe.scoring.rescore import score_table

    stored = open_run(path)
    table = score_table(stored.table(), build_scorer(scorer))
    digest = hashlib.sha256(scorer.model_dump_json().encode()).hexdigest()[:8]
    key = f"scores/{digest}.parquet"
    columns = ["item_id", "item_index", "repeat", "generation", "score", "correct", "extracted"]
    stored.store.put(key, encode_table(table.select(columns), spec_sha256=stored.spec.sha256))
    spec, coverage = stored.spec, stored.config.run.coverage
    summary = summarise(select_newest(table), expected_items=spec.items, repeats=spec.repeats, coverage=coverage)
    return summary, f"{stored.url}/{key}"


def _speed(session: Session, outcome: Outcome) -> dict[str, Any]:
    """What the driver measured: of this driver's time only, not of earlier ones."""
    progress = outcome.progress
    busy_s = max(outcome.elapsed_s - (outcome.first_request_s or 0.0), 1e-9)
    output_tokens = progress.output_tokens
    return {
        "rate": {
            "elapsed_s": outcome.elapsed_s,
            "first_request_s": outcome.first_request_s,
            "items_per_s": progress.finished / busy_s,
            "output_tokens_per_s": output_tokens / busy_s,
            "retries": progress.retries,
            "worker_cpu_s": outcome.worker_cpu_s,
        },
        "limit": {
            "law": resolve_law(session.config.control.law)[0],
            "final": progress.limit,
            "mean": progress.mean_limit,
            "mean_in_flight": progress.mean_in_flight,
            "gradient": progress.gradient,
        },
        "bound_by": progress.bound_by,
        "workers": progress.workers,
    }


def _write_page(store: ObjectStore, body: Mapping[str, Any]) -> None:
    """Write report.html. It is for people and made of what is stored: whatever goes wrong with it is no matter."""
    from evalpipe.report.page import write_page

    try:
        write_page(store, body)
    except Exception:
        logging.getLogger(__name__).warning("report.html was not written; try evalpipe report", exc_info=True)


def _stored_summary(store: ObjectStore) -> dict[str, Any]:
    try:
        return readable.from_json(store.get(SUMMARY_KEY), key=SUMMARY_KEY)
    except StateError:  # there is none, or it is damaged: it is made anew
        return {}


def _greet(session: Session, say: Callable[[str], None]) -> None:
    if session.is_complete:
        state = "is complete" if session.retry is None else "has no failed item"
        say(f"run {session.name} {state}, nothing is sent")
        return
    endpoint = session.endpoint
    assert endpoint is not None
    done = session.expected - session.owed
    verb = f"resume {session.name}: {done} of {session.expected} done," if done else "run"
    if session.retry is not None:
        verb = f"resume {session.name}: try again"
    config = session.config
    where = config.endpoint.base_url if config.is_simulated else endpoint.base_url
    say(f"{verb} {session.owed} items with {endpoint.model} at {where}, to {session.store.url}")
    law, why = resolve_law(config.control.law)
    say(f"law {law}: {why}")
    for note in endpoint.notes:
        say(f"note: {note}")


class _run_log:  # used as a context manager only
    """Send the package's log lines to run.log in the run's folder; a run in a bucket has none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._handler: logging.Handler | None = None

    def __enter__(self) -> None:
        if self._folder is None:
            return
        path = self._folder / "run.log"
        path.touch(mode=0o600)
        self._handler = logging.FileHandler(path, encoding="utf-8")
        self._handler.setFormatter(
            logging.Formatter("time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s")
        )
        logger = logging.getLogger("evalpipe")
        logger.addHandler(self._handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is None:
            return
        logger = logging.getLogger("evalpipe")
        if error is not None:
            logger.error("ended by an exception", exc_info=error)
        logger.removeHandler(self._handler)
        self._handler.close()
        logger.propagate = True


def _link_latest(session: Session) -> None:
    """Let runs/latest point to this run, where there is a folder for it."""
    if session.folder is None:
        return
    link = session.folder.parent / "latest"
    fresh = link.with_name(f".latest-{session.name}")
    try:
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(session.name)
        fresh.replace(link)
    except OSError:
        logging.getLogger(__name__).warning("runs/latest could not be linked")
