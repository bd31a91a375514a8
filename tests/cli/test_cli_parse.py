"""What the command line makes of its words, its errors and its display; nothing is sent here."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from store.store_rows import SPEC, SmallRun

from evalpipe.cli.display import JsonDisplay, NoDisplay, PlainDisplay, RichDisplay, make_display
from evalpipe.cli.dry_run import dry_run, price
from evalpipe.cli.exits import exit_code_of, explain
from evalpipe.cli.main import fill_in
from evalpipe.cli.run import load_env_file, parse_concurrency, stored_config
from evalpipe.config import Config, parse_config
from evalpipe.control.core import TimedChange
from evalpipe.control.law import LimitChange
from evalpipe.endpoint.failures import TABLE, make
from evalpipe.errors import ConfigError, DataError, Failure, Fenced, RunFatal, StateError
from evalpipe.runtime.progress import Board, Progress
from evalpipe.store.local import LocalStore
from evalpipe.store.objects import NotFound


def progress() -> Progress:
    made = Board(max_limit=64).snapshot(elapsed_s=1.0, expected=10, ok=4, failed=1, bound_by="server")
    return replace(made, changes=(TimedChange(1.0, LimitChange(16.0, 24.0, "grow")),))


# --- flags ---


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (None, {}),
        ("auto", {}),
        ("64", {"control.law": "fixed", "control.start": 64}),
        ("8-64", {"control.min_limit": 8, "control.max_limit": 64}),
        ("8-16-64", {"control.min_limit": 8, "control.start": 16, "control.max_limit": 64}),
    ],
)
def test_concurrency_is_bounds_or_a_fixed_number(text: str | None, settings: dict):
    """N fixes the limit; two or three numbers are its bounds, whichever law steers."""
    assert parse_concurrency(text) == settings


@pytest.mark.parametrize("text", ["", "many", "8-", "-8", "1-2-3-4", "8..64", "1.5"])
def test_another_form_of_concurrency_is_refused(text: str):
    """With the forms that would do."""
    with pytest.raises(ConfigError, match="auto, N, MIN-MAX or MIN-START-MAX, got"):
        parse_concurrency(text)


# --- .env ---


def env_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, **before: str) -> dict[str, str]:
    path = tmp_path / ".env"
    path.write_text(content, encoding="utf-8")
    monkeypatch.setattr(os, "environ", dict(before))
    load_env_file(path)
    return dict(os.environ)


def test_env_lines_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Plain, exported, quoted, with = in the value; comments and other lines are skipped."""
    content = "# key\nA=1\nexport B=two words\nC = 'quoted'\nD=\"x=y\"\nE=\n#F=6\nno equals sign\n=G\n"

    found = env_after(monkeypatch, tmp_path, content)

    assert found == {"A": "1", "B": "two words", "C": "quoted", "D": "x=y", "E": ""}


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What is set already stays, an empty value too."""
    found = env_after(monkeypatch, tmp_path, "A=file\nB=file\n", A="shell", B="")

    assert found == {"A": "shell", "B": ""}


def test_without_a_file_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """.env is optional."""
    monkeypatch.setattr(os, "environ", {"A": "1"})

    load_env_file(tmp_path / ".env")

    assert os.environ == {"A": "1"}


# --- errors ---


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (DataError("x"), 2),
        (Fenced("x"), 75),
        (StateError("x"), 78),
        (NotFound("x"), 78),
        (RunFatal(Failure("auth")), 77),
        (RunFatal(Failure("quota")), 77),
        (RunFatal(Failure("no_model")), 78),
        (RunFatal(Failure("unreachable")), 78),
        (OSError(errno.ENOSPC, "no space"), 75),
        (ValueError("x"), 1),
    ],
)
def test_exit_codes_follow_from_the_class(error: Exception, code: int):
    """The table of DESIGN section 9."""
    assert exit_code_of(error) == code


def test_every_failure_that_ends_a_run_has_a_code():
    """No kind of the table falls through to a code of its own."""
    assert {exit_code_of(make(kind, "x")) for kind in TABLE} == {77, 78}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("no such config file: a.yaml"), ["no such config file: a.yaml"]),
        (RunFatal(Failure("auth", message="key refused")), ["key refused"]),
        (RunFatal(Failure("auth")), ["auth"]),
        (OSError(errno.ENOSPC, "disk is full"), ["disk is full ENOSPC", "what was committed is safe"]),
        (ZeroDivisionError("oops"), ["a bug in evalpipe: ZeroDivisionError: oops", "--debug"]),
    ],
)
def test_an_error_is_one_line(error: Exception, words: list[str]):
    """What happened and what to do, without a traceback."""
    text = explain(error)

    assert [word for word in words if word not in text] == []
    assert "\n" not in text


# --- display ---


@pytest.mark.parametrize(
    ("kind", "display"), [("rich", RichDisplay), ("plain", PlainDisplay), ("json", JsonDisplay), ("none", NoDisplay)]
)
def test_the_display_that_was_asked_for(kind: str, display: type):
    """By name, whatever the terminal."""
    assert type(make_display(kind)) is display


def test_without_a_terminal_it_is_plain(capsys: pytest.CaptureFixture[str]):
    """A log file gets lines, not a panel that is redrawn."""
    assert type(make_display(None)) is PlainDisplay


def test_an_unknown_display_is_refused():
    """With the names there are."""
    with pytest.raises(ConfigError, match="one of rich, plain, json, none, got 'fancy'"):
        make_display("fancy")


def test_plain_lines_are_rare_and_on_stderr(capsys: pytest.CaptureFixture[str]):
    """Every move of the limit is told, the state of the run each ten seconds; stdout is for results."""
    display = PlainDisplay()

    display.show(progress())
    display.show(progress())
    display.close()

    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert ["limit   16.0 ->   24.0" in line for line in lines] == [True, False, True]
    assert lines[1].startswith("5/10 50%")


def test_json_is_one_object_a_line_on_stdout(capsys: pytest.CaptureFixture[str]):
    """A program can read it: events with all figures, changes included."""
    display = JsonDisplay()

    display.say("hello")
    display.show(progress())

    said, shown = map(json.loads, capsys.readouterr().out.splitlines())
    assert said == {"event": "say", "text": "hello"}
    assert (shown["event"], shown["ok"], shown["changes"][0]["change"]["new"]) == ("progress", 4, 24.0)


def test_none_is_silent(capsys: pytest.CaptureFixture[str]):
    """Neither stream gets a byte."""
    display = NoDisplay()

    display.say("hello")
    display.show(progress())
    display.close()

    assert capsys.readouterr() == ("", "")


def test_the_panel_takes_what_is_said_as_it_is(capsys: pytest.CaptureFixture[str]):
    """Square brackets of a path or a model's name are no markup."""
    display = RichDisplay()

    display.say("to runs/[bold]x[/bold]")
    display.show(progress())
    display.close()

    assert "to runs/[bold]x[/bold]" in capsys.readouterr().err


# --- dry run ---


@pytest.fixture
def planned(tmp_path: Path) -> Config:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"id": n, "question": "q" * 40, "answer": "1"}) + "\n" for n in range(5)))
    return parse_config(
        {
            "dataset": {"path": str(path)},
            "run": {"output": str(tmp_path / "runs"), "repeats": 2},
            "prompt": {"instruction": ""},
            "sampling": {"max_tokens": 100},
            "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "price_input": 1.0, "price_output": 10.0},
        }
    )


def test_a_dry_run_tells_what_would_be_sent(planned: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Items, requests, tokens, price, time and three prompts; no folder is made and no socket opened."""
    dry_run(planned, as_json=False)

    text = capsys.readouterr().out
    assert "items: 5 x 2 repeats = 10 requests to m at http://127.0.0.1:9/v1" in text
    assert "tokens: about 100 in, at most 1,000 out" in text
    assert "price: at most 0.01" in text
    assert "0.2 min at 1 answers/s, 0.0 min at 10 answers/s" in text
    assert text.count("--- prompt ") == 3
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_as_json(planned: Config, capsys: pytest.CaptureFixture[str]):
    """The same figures for a program."""
    dry_run(planned, as_json=True)

    body = json.loads(capsys.readouterr().out)
    assert (body["items"], body["repeats"], body["requests"]) == (5, 2, 10)
    assert (body["prompt_tokens_estimate"], body["output_tokens_at_most"]) == (100, 1000)
    assert body["price_at_most"] == pytest.approx(0.0101)
    assert body["prompts"] == ["q" * 40] * 3


def test_a_dry_run_finds_a_template_typo(planned: Config):
    """It is the cheapest place to meet a mistake."""
    typo = planned.model_copy(update={"prompt": planned.prompt.model_copy(update={"template": "{{ qestion }}"})})

    with pytest.raises(ConfigError, match="did you mean 'question'"):
        dry_run(typo, as_json=False)


def test_no_price_is_no_guess():
    """Unknown is None, one price alone counts, per million tokens."""
    only_output = parse_config({"endpoint": {"price_output": 2.0}})

    assert price(Config(), 10, 10) is None
    assert price(only_output, 5, 500_000) == 1.0


# --- resume ---


def test_a_stored_run_is_resumed_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Name, folder and `always` come from where it is found, not from what its config said; --set still wins."""
    monkeypatch.chdir(tmp_path)
    store = LocalStore(tmp_path / "moved" / "r1")
    SmallRun(store, spec=SPEC)
    store.put(
        "config.yaml", parse_config({"run": {"name": "old", "output": "runs", "takeover": True}}).to_yaml().encode()
    )

    config = stored_config("moved/r1", settings=["control.law=aimd"], fail_on_error=0.5)

    run = config.run
    assert (run.name, run.output, run.resume) == ("r1", str(tmp_path / "moved"), "always")
    assert (run.takeover, run.fail_on_error, config.control.law) == (False, 0.5, "aimd")


def test_a_folder_without_a_run_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No spec.json: no run. No config.yaml: it can be read, not resumed by its settings."""
    monkeypatch.chdir(tmp_path)
    SmallRun(LocalStore(tmp_path / "bare"), spec=SPEC)

    with pytest.raises(ConfigError, match="no run at nowhere"):
        stored_config("nowhere")
    with pytest.raises(ConfigError, match=r"has no usable config.yaml; run it again"):
        stored_config("bare")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["resume", "r", "--failed"], ["resume", "r", "--failed=all"]),
        (["resume", "r", "--failed", "--json"], ["resume", "r", "--failed=all", "--json"]),
        (["resume", "r", "--failed", "poison"], ["resume", "r", "--failed", "poison"]),
        ([], []),
    ],
)
def test_failed_without_a_kind_means_all(given: list[str], meant: list[str]):
    """The kind may be left out at the end and before another option."""
    assert fill_in(given) == meant
