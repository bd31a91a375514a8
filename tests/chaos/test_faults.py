"""Every way a server can misbehave over HTTP: a fifth of all requests, then all of them.

At 20 % a run completes: each item has one row, an answer that the server gave or a failure with a kind. At 100 % it
ends within a minute with the right exit code and one line that says why. Faults that end a run end it at 20 % too; then
the same command, with the fault gone, completes it, and no item has paid for it with an attempt.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from chaos.tables import Tables
from chaos.watching import until
from support import QUICK, Said
from witness import Witness, check_run

from evalpipe import open_run
from evalpipe.endpoint.failures import TABLE
from evalpipe.errors import ItemRefused, RunFatal
from evalpipe.sim.ledger import Ledger, read_ledger
from evalpipe.sim.misbehave import FAULTS
from evalpipe.sim.server import SimServer
from evalpipe.store.verify import verify

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(300)]

LLMOCK = (sys.executable, "-c", "from llmock.cli import app; app()")
ITEMS = 60
ENDS_WITHIN_S = 60.0
SETTINGS = {
    "endpoint.trace_header": "true",
    "endpoint.deadline_s": "4",  # so that what hangs is told in seconds
    "endpoint.first_success_s": "6",
    "endpoint.max_response_bytes": "1048576",
    "run.flush_s": "0.5",
}
#: a fault -> the kind of failure that it must become
KIND_OF = {
    "bad_request": "bad_request",
    "not_found": "not_found",
    "too_large": "bad_request",
    "unprocessable": "bad_request",
    "too_long": "too_long",
    "too_long_vllm": "too_long",
    "too_long_as_500": "too_long",
    "filtered": "filtered",
    "oversize": "oversize",
    "gzip_bomb": "oversize",
    "endless_stream": "oversize",
    "bad_key": "auth",
    "forbidden": "auth",
    "payment_required": "quota",
    "insufficient_quota": "quota",
    "credit_exhausted": "quota",
    "spend_limit": "quota",
    "usage_limit": "quota",
    "no_model": "model_not_found",
    "redirect": "redirected",
    "rate_limited": "rate_limited",
    "rate_limited_ms": "rate_limited",
    "rate_limited_date": "rate_limited",
    "rate_limited_oddly": "rate_limited",
    "overloaded": "overloaded",
    "overloaded_529": "overloaded",
    "overloaded_in_stream": "overloaded",
    "request_timeout": "try_again",
    "conflict": "try_again",
    "too_early": "try_again",
    "server_error": "server_error",
    "bad_gateway": "server_error",
    "gateway_timeout": "server_error",
    "origin_timeout": "server_error",
    "error_in_200": "server_error",
    "error_event_in_stream": "server_error",
    "named_error_event": "server_error",
    "html_200": "bad_body",
    "nan": "bad_body",
    "list_body": "bad_body",
    "null_body": "bad_body",
    "empty_body": "bad_body",
    "bad_json": "bad_body",
    "bad_utf8": "bad_body",
    "garbage": "bad_body",
    "empty_choices": "no_answer",
    "null_content": "no_answer",
    "bare_done": "no_answer",
    "short_body": "cut",
    "cut_stream": "cut",
    "reset": "cut",
    "close_early": "reset",
    "reset_early": "reset",
    "hang": "timeout",
    "slow_header": "timeout",
    "slow_loris": "timeout",
    "stall": "timeout",
    "no_finish_reason": "no_finish",
}
#: a fault that is an answer all the same -> its status
STATUS_OF = {
    "length": "truncated",
    "filtered_answer": "filtered",
    "refusal": "refused",
    "no_usage": "ok",
    "wrong_model": "ok",
    "null_choices_chunk": "ok",
}
FATAL = [name for name, kind in KIND_OF.items() if TABLE[kind].error is RunFatal]
LIVED_WITH = [name for name in KIND_OF if name not in FATAL]
SHORT = {"rate_limited", "cut_stream", "hang", "html_200", "too_long", "insufficient_quota", "refusal"}
CODE_OF = {"auth": 77, "quota": 77}  # all others: 78


def each(names: Iterable[str]) -> list[Any]:
    """Return one case a fault; a few are cases of `make test-chaos-short` too."""
    return [pytest.param(name, id=name, marks=pytest.mark.short if name in SHORT else ()) for name in names]


@dataclass
class Bench:
    """One run's command, and what came of it."""

    cli: Callable[..., Said]
    folder: Path
    dataset: Path
    settings: dict[str, str] = field(default_factory=dict)
    served: int = 0

    @property
    def run(self) -> Path:
        return self.folder / "runs/run"

    def ask(self, url: str, *, model: str = "sim") -> Said:
        """Run, or go on with, the same run against this server."""
        options = {
            "--base-url": url, "--model": model, "--dataset": str(self.dataset), "--limit": str(ITEMS),
            "-o": str(self.folder / "runs"), "--name": "run", "--workers": "1", "--concurrency": "16",
            "--fail-on-error": "1",
        }  # fmt: skip
        words = [word for pair in options.items() for word in pair]
        for name, value in (SETTINGS | self.settings).items():
            words += ["--set", f"{name}={value}"]
        return self.cli("run", *words, "--json")

    def under(self, faults: dict[str, Any], *, seed: int = 3) -> Said:
        """Run against a server of its own that misbehaves so; all write to one ledger."""
        ledger = self.folder / "ledger.jsonl"
        with SimServer("vllm", options=QUICK, dataset=self.dataset, ledger=ledger, faults=faults, seed=seed) as server:
            return self.ask(server.base_url)

    def check(self) -> Witness:
        """Hold what is stored against the ledger: every item once, nothing foreign, paid twice only where one cannot
        know."""
        found = check_run(self.run, self.folder / "ledger.jsonl")
        assert (found.rows, found.is_clean) == (ITEMS, True), found
        assert verify(open_run(self.run).store).is_complete
        unknown = sum(TABLE[attempt["kind"]].is_ambiguous for attempt in self.attempts() if attempt["kind"] != "ok")
        assert found.paid_twice <= unknown
        return found

    def rows(self) -> list[dict[str, Any]]:
        return open_run(self.run).table().to_pylist()

    def attempts(self) -> list[dict[str, Any]]:
        return [row for path in (self.run / "attempts").glob("*.parquet") for row in pq.read_table(path).to_pylist()]

    @property
    def ledger(self) -> Ledger:
        return read_ledger(self.folder / "ledger.jsonl", run="run")


@pytest.fixture
def bench(cli: Callable[..., Said], tmp_path: Path, repository: Path) -> Bench:
    return Bench(cli, tmp_path, repository / "datasets/logic-5k.parquet")


def why(said: Said) -> str:
    """Return the one line that says how it ended: of a run that began, or of one that did not."""
    if said.out.strip():
        return str(json.loads(said.out)["why"])
    (line,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ")


def check_line(line: str, kind: str) -> None:
    """It names what is wrong in the table's words, or that the server is of no use; it is short and no traceback."""
    words = TABLE[kind].line
    assert words in line or "no usable server at http" in line or "refuses a request without a key" in line, line
    assert len(line) < 400 and "Traceback" not in line


def check_code(said: Said, kind: str) -> None:
    assert said.code == CODE_OF.get(kind, 78), (said.code, why(said), said.err)
    assert said.seconds - started_after_s(said) < ENDS_WITHIN_S


def started_after_s(said: Said) -> float:
    """Return how long the driver waited for its first worker: Ray's time, and a loaded machine's."""
    return json.loads(said.out)["rate"]["first_request_s"] or 0.0 if said.out.strip() else 0.0


def kinds(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {row["error_kind"] for row in rows if row["status"] == "failed"}


def note(tables: Tables, name: str, bench: Bench, some: Said, every: Said, found: Witness) -> None:
    tables.add(
        f"HTTP faults: {ITEMS} items, a fifth of all requests, then all",
        fault=name,
        kind=KIND_OF.get(name, STATUS_OF.get(name)),
        ok=found.answered,
        failed=found.rows - found.answered,
        **{"paid twice": found.paid_twice, "s": f"{some.seconds:.1f}"},
        exit=every.code,
        **{"s at 100 %": f"{every.seconds:.1f}", "line": why(every)[:150]},
    )


def test_every_fault_is_in_the_table():
    """A fault that is added must say what is to become of it."""
    assert set(KIND_OF) | set(STATUS_OF) == set(FAULTS)


@pytest.mark.parametrize("name", each(LIVED_WITH))
def test_a_fault_that_can_be_lived_with(bench: Bench, tables: Tables, tmp_path: Path, name: str):
    """At 20 %: complete, typed, exactly once. At 100 %: over within a minute, 78 and a line."""
    kind = KIND_OF[name]
    every = Bench(bench.cli, tmp_path / "every", bench.dataset)
    every.folder.mkdir()

    some = bench.under({name: 0.2})
    found, rows = bench.check(), bench.rows()
    hit = {arrival.item for arrival in bench.ledger.arrivals if arrival.fault == name}
    all_of_them = every.under({name: 1.0})

    note(tables, name, bench, some, all_of_them, found)
    assert some.code == 0, some.err
    assert hit and kinds(rows) <= {kind}
    failed = {row["item_id"] for row in rows if row["status"] == "failed"}
    assert failed == hit if TABLE[kind].error is ItemRefused else failed <= hit
    check_code(all_of_them, kind)
    check_line(why(all_of_them), kind)


@pytest.mark.parametrize("name", each(FATAL))
def test_a_fault_that_ends_the_run(bench: Bench, tables: Tables, tmp_path: Path, name: str):
    """At 20 %, from the 20th request on: it ends at once (a key that worked is tried again first), and no item has
    failed or spent an attempt; with the fault gone the same command completes. At 100 %: nothing is begun."""
    kind = KIND_OF[name]
    every = Bench(bench.cli, tmp_path / "every", bench.dataset)
    every.folder.mkdir()

    some = bench.under({name: {"share": 0.2, "after": 20}})
    failed_meanwhile = json.loads(some.out)["items"]["failed"]
    again = bench.under({})
    found = bench.check()
    all_of_them = every.under({name: 1.0})

    note(tables, name, bench, some, all_of_them, found)
    assert some.code in ({0, 77} if kind == "auth" else {CODE_OF.get(kind, 78)}), some.err
    assert (failed_meanwhile, again.code, found.answered) == (0, 0, ITEMS)
    check_code(all_of_them, kind)
    check_line(why(all_of_them), kind)
    assert not every.run.exists()


@pytest.mark.parametrize("name", each(STATUS_OF))
def test_an_answer_that_is_told_oddly_is_an_answer(bench: Bench, tables: Tables, tmp_path: Path, name: str):
    """Never tried again, never a failure: exit 0 with a status by policy, at 20 % as at 100 %."""
    every = Bench(bench.cli, tmp_path / "every", bench.dataset)
    every.folder.mkdir()

    some, all_of_them = bench.under({name: 0.2}), every.under({name: 1.0})
    found = bench.check()
    every.check()

    note(tables, name, bench, some, all_of_them, found)
    assert (some.code, all_of_them.code, found.answered) == (0, 0, ITEMS), some.err
    hit = {arrival.item for arrival in bench.ledger.arrivals if arrival.fault == name}
    assert hit
    assert all(_shows(row, name) for row in [*every.rows(), *(row for row in bench.rows() if row["item_id"] in hit)])
    assert len(every.ledger.arrivals) == ITEMS


def _shows(row: dict[str, Any], name: str) -> bool:
    """Say whether a row tells of the oddity, where it is one that matters."""
    signs = {"no_usage": row["usage_source"] == "none", "wrong_model": row["model"] == "another-model"}
    return signs.get(name, row["status"] == STATUS_OF[name])


def test_quota_gone_in_the_middle(bench: Bench, tables: Tables):
    """From request 30 on all are refused: 77 within 30 s, no item failed, no attempt spent; later the same command
    goes on with what is left."""
    said = bench.under({"insufficient_quota": {"share": 1.0, "after": 30}})
    stored = json.loads(said.out)["items"]
    again = bench.under({})
    found, rows = bench.check(), bench.rows()

    tables.add("Quota gone", exit=said.code, s=f"{said.seconds:.1f}", ok=stored["ok"], line=why(said)[:150])
    assert said.code == 77 and said.seconds < 30
    assert "quota" in why(said)
    assert stored["ok"] > 0 and stored["failed"] == 0
    assert (again.code, found.answered) == (0, ITEMS)
    assert {row["attempts"] for row in rows} == {1}


def test_a_key_that_is_rotated_costs_no_item_anything(bench: Bench):
    """Three refusals in the middle: sends pause, single probes follow, the run completes."""
    said = bench.under({"bad_key": {"share": 1.0, "after": 30, "until": 32}})
    found = bench.check()

    assert (said.code, found.answered) == (0, ITEMS), said.err
    assert sum(arrival.fault == "bad_key" for arrival in bench.ledger.arrivals) == 2


def test_a_key_that_is_revoked_ends_the_run(bench: Bench):
    """It worked before: three probes in twenty seconds, then 77; the same command with a good key goes on."""
    said = bench.under({"bad_key": {"share": 1.0, "after": 30}})
    refused = sum(arrival.fault == "bad_key" for arrival in bench.ledger.arrivals)
    again = bench.under({})
    found = bench.check()

    assert said.code == 77 and "key" in why(said)
    assert 15 < said.seconds < ENDS_WITHIN_S
    assert refused <= 16 + 3  # what was in flight, and the probes
    assert json.loads(said.out)["items"]["failed"] == 0
    assert (again.code, found.answered) == (0, ITEMS)


@pytest.mark.parametrize("name", ["hang", "overloaded"])
def test_nothing_but_silence_ends_within_a_minute_with_the_defaults(bench: Bench, name: str):
    """The deadline of a request is minutes; the patience of a run that never had an answer is not."""
    bench.settings = {"endpoint.deadline_s": "null", "endpoint.first_success_s": "45"}

    said = bench.under({name: 1.0})

    check_code(said, KIND_OF[name])
    assert why(said).startswith("no answer within 45 s")


@pytest.fixture
def llmock(tmp_path: Path) -> Iterator[str]:
    """An outside referee: 15 % 429, 5 % 503, 10 % of streams cut; returns its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    faults = ["--error-rate", "429=0.15", "--error-rate", "503=0.05", "--stream-fault", "truncate=0.1"]
    command = [*LLMOCK, "serve", "--port", str(port), "--log-level", "error", *faults]
    with (tmp_path / "llmock.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: models(url), within_s=60, what="llmock to start")
            yield url
        finally:
            server.terminate()


def models(url: str) -> list[str]:
    """Return what the server lists; nothing while it is not up, or refuses (the referee spares no path)."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as response:
            return [entry["id"] for entry in json.loads(response.read())["data"]]
    except OSError:
        return []


def test_llmock_finds_no_misbehaviour(bench: Bench, llmock: str, tables: Tables):
    """Its verdict: Retry-After was kept, nothing hopeless was repeated, no storm, no truncated stream was taken."""
    served = next(filter(None, (models(llmock) for _ in range(50))))
    said = bench.ask(f"{llmock}/v1", model=served[0])
    verdict = subprocess.run([*LLMOCK, "report", "--url", llmock, "--json"], capture_output=True, text=True, timeout=60)

    report = json.loads(verdict.stdout)
    tables.add(
        "llmock's verdict: 15 % 429, 5 % 503, 10 % of streams cut",
        exit=said.code, s=f"{said.seconds:.1f}", report=verdict.returncode,
        **{name: report[name] for name in ("calls", "attempts", "faults_injected", "errors", "warnings")},
    )  # fmt: skip
    assert said.code == 0, said.err
    assert json.loads(said.out)["items"]["ok"] == ITEMS
    assert report["faults_injected"] > 0
    assert (verdict.returncode, report["findings"]) == (0, [])
