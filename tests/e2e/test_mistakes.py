"""Every mistake of a user ends within ten seconds: one clear line, the right exit code, nothing half written."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import KEY, KEY_ENV

from evalpipe.sim.server import SimServer

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer("instant", api_key=KEY, model="llama") as started:
        yield started


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"i{n}", "question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(20))
    )
    return path


@pytest.fixture
def arguments(server: SimServer, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A command that works; each test spoils one thing."""
    monkeypatch.setenv("EVALPIPE__ENDPOINT__API_KEY_ENV", KEY_ENV)
    return {
        "--base-url": server.base_url,
        "--model": "llama",
        "--dataset": str(dataset),
        "-o": str(tmp_path / "runs"),
        "--workers": "1",
    }


def run(cli, arguments: dict[str, str], *more: str):
    return cli("run", *(part for pair in arguments.items() for part in pair), *more)


def files_of(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def check(said, *, code: int, words: tuple[str, ...], runs: Path) -> None:
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert said.code == code, said.err
    assert len(errors) == 1 and all(word in errors[0] for word in words), said.err
    assert "Traceback" not in said.err
    assert said.seconds < 10
    assert not runs.exists() or files_of(runs) == []


def test_without_a_mistake_it_works(cli, arguments, tmp_path: Path):
    """The command that the other tests spoil completes, and its JSON summary is the only thing on stdout."""
    said = run(cli, arguments, "--json")

    assert said.code == 0, said.err
    assert json.loads(said.out)["items"] == {
        "expected": 20, "ok": 20, "failed": 0, "missing": 0, "truncated": 0, "filtered": 0, "refused": 0,
    }  # fmt: skip


def test_wrong_key(cli, arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A refused key ends with 77, and neither key is printed."""
    monkeypatch.setenv(KEY_ENV, "sk-wrong-key-of-somebody")

    said = run(cli, arguments)

    check(said, code=77, words=("key",), runs=tmp_path / "runs")
    assert "sk-wrong" not in said.err + said.out


def test_a_key_that_workers_lack(cli, arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A key exported for the driver alone ends with 77 and says where it is missing; it is not sent along."""
    monkeypatch.setenv("EVALPIPE__ENDPOINT__API_KEY_ENV", "ONLY_HERE")
    monkeypatch.setenv("ONLY_HERE", KEY)

    said = run(cli, arguments, "--name", "mine")

    assert said.code == 77, said.err
    assert "ONLY_HERE is set for the driver, not for the workers" in said.out
    assert KEY not in said.out + said.err


def test_wrong_model(cli, arguments, tmp_path: Path):
    """A model that is not served ends with 78 and the names that are."""
    said = run(cli, arguments | {"--model": "lama"})

    check(said, code=78, words=("lama is not served", "llama"), runs=tmp_path / "runs")


def test_unreachable_server(cli, arguments, tmp_path: Path):
    """A closed port ends with 78 and the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"

    said = run(cli, arguments | {"--base-url": url})

    check(said, code=78, words=("no usable server at", url), runs=tmp_path / "runs")


def test_plain_http_to_a_public_host(cli, arguments, tmp_path: Path):
    """Keys do not travel in clear: http to a public host is refused before anything is sent."""
    said = run(cli, arguments | {"--base-url": "http://api.example.com/v1"})

    check(said, code=2, words=("https",), runs=tmp_path / "runs")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("control.lw=fixed", ("control.lw", "did you mean 'law'")),
        ("control.law=gradent", ("gradent", "did you mean 'gradient'")),
        ("control.min_limit=9", ("min_limit", "max_limit")),
        ("scorer.name=exactly", ("exactly", "exact")),
        ("prompt.template={{ questoin }}", ("questoin", "question")),
    ],
)
def test_config_typo(cli, arguments, tmp_path: Path, override: str, words: tuple[str, ...]):
    """A typo ends with 2, the key and the nearest right one."""
    said = run(cli, arguments, "--set", override, "--set", "control.max_limit=4")

    check(said, code=2, words=words, runs=tmp_path / "runs")


def test_missing_dataset(cli, arguments, tmp_path: Path):
    """A file that is not there ends with 2 and its name."""
    said = run(cli, arguments | {"--dataset": str(tmp_path / "itms.jsonl")})

    check(said, code=2, words=("itms.jsonl", "items.jsonl"), runs=tmp_path / "runs")


def test_duplicate_ids(cli, arguments, tmp_path: Path, dataset: Path):
    """An id that comes twice ends with 2 and both lines."""
    dataset.write_text(dataset.read_text() + '{"id": "i3", "question": "?", "answer": "1"}\n')

    said = run(cli, arguments)

    check(said, code=2, words=("duplicate id 'i3'", "line 4", "line 21"), runs=tmp_path / "runs")


def test_unwritable_folder(cli, arguments, tmp_path: Path):
    """A run folder that cannot be made ends with 2 and the folder."""
    (tmp_path / "file").write_text("not a folder")

    said = run(cli, arguments | {"-o": str(tmp_path / "file" / "runs")})

    check(said, code=2, words=(str(tmp_path / "file"),), runs=tmp_path / "runs")


def test_other_settings_under_the_same_name(cli, arguments, tmp_path: Path):
    """Resuming with another prompt is refused with the difference, and the stored run stays as it was."""
    first = run(cli, arguments, "--name", "mine")
    before = files_of(tmp_path / "runs")

    second = run(cli, arguments, "--name", "mine", "--set", "sampling.max_tokens=7")

    assert first.code == 0, first.err
    assert second.code == 78
    assert "sampling.max_tokens: 2048 -> 7" in second.err
    assert files_of(tmp_path / "runs") == before


def test_quota_gone_stops_the_run(cli, arguments, tmp_path: Path):
    """insufficient_quota in the middle ends with 77; what was answered is kept and nobody's attempts are spent."""
    with SimServer("instant", faults={"insufficient_quota": 0.2}, seed=3) as poor:
        said = run(cli, arguments | {"--base-url": poor.base_url, "--model": "sim"}, "--name", "poor", "--json")
    with SimServer("instant") as rich:
        again = run(cli, arguments | {"--base-url": rich.base_url, "--model": "sim"}, "--name", "poor", "--json")

    assert said.code == 77, said.err
    assert json.loads(said.out)["items"]["failed"] == 0
    assert (again.code, json.loads(again.out)["items"]["ok"]) == (0, 20)
