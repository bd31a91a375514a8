"""Opening a run: its name and place, what may be resumed, what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from store.store_rows import SmallRun

from evalpipe.config import Config, load_config, parse_config
from evalpipe.control.build import LAW_NAMES
from evalpipe.data import open_dataset
from evalpipe.errors import ConfigError, DataError, StateError
from evalpipe.runtime.jobenv import JOB_ENV
from evalpipe.runtime.place import OUTPUT_ENV, find_run, output_of
from evalpipe.runtime.session import check_settings, max_limit, open_session
from evalpipe.store.local import LocalStore
from evalpipe.store.spec import Spec


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    rows = [{"id": f"s{n}", "question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def config(tmp_path: Path, dataset: Path) -> Config:
    """A run named `done` against a closed port: a request would fail, and the guard refuses it first."""
    return parse_config(
        {
            "run": {"name": "done", "output": str(tmp_path / "runs")},
            "dataset": {"path": str(dataset)},
            "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"},
        }
    )


def changed(config: Config, *overrides: str) -> Config:
    return load_config(base=config, overrides=overrides, environ={})


def store_run(config: Config, *, failed: tuple[int, ...] = ()) -> LocalStore:
    """Put a complete run of `config` where it belongs, as its driver would have left it."""
    with open_dataset(config.dataset) as data:
        spec = Spec(config.semantic(), data.fingerprint, len(data), config.run.repeats)
    store = LocalStore(f"{config.run.output}/{config.run.name}")
    run = SmallRun(store, spec=spec)
    run.log.commit([run.write(range(spec.items), failed=failed)])
    return store


# --- where runs lie ---


def test_output_is_the_flag_else_the_environment_else_runs(monkeypatch: pytest.MonkeyPatch):
    """The strongest that is given; a trailing slash makes no other folder."""
    given = parse_config({"run": {"output": "mine/"}})

    assert output_of(Config()) == "runs"
    monkeypatch.setenv(OUTPUT_ENV, "theirs")
    assert output_of(Config()) == "theirs"
    assert output_of(given) == "mine"


@pytest.mark.parametrize("output", [None, "runs", "./deep/runs"])
def test_a_relative_output_inside_a_job_is_refused(monkeypatch: pytest.MonkeyPatch, output: str | None):
    """The job's working folder is a copy that is thrown away; the line names what would do."""
    monkeypatch.setenv(JOB_ENV, "{}")

    with pytest.raises(ConfigError, match=rf"relative.*absolute folder or s3.*{OUTPUT_ENV}"):
        output_of(parse_config({"run": {"output": output}}))


@pytest.mark.parametrize("output", ["/data/runs", "s3://bucket/runs"])
def test_an_absolute_output_inside_a_job_is_fine(monkeypatch: pytest.MonkeyPatch, output: str):
    """Given by flag or by the environment of the cluster."""
    monkeypatch.setenv(JOB_ENV, "{}")
    monkeypatch.setenv(OUTPUT_ENV, output)

    assert output_of(Config()) == output
    assert output_of(parse_config({"run": {"output": output}})) == output


# --- which run is meant ---


def test_the_name_says_what_is_run(config: Config):
    """Dataset, model, and eight digits of the semantic settings; no time, so that the same command finds it again."""
    unnamed = changed(config, "run.name=null", "endpoint.model=owner/model-7b")

    name, store = find_run(unnamed)

    assert name == f"sums-owner-model-7b-{unnamed.semantic_hash()[:8]}"
    assert store.url == f"{config.run.output}/{name}"
    assert find_run(changed(unnamed, "control.law=aimd"))[0] == name
    assert find_run(changed(unnamed, "sampling.max_tokens=5"))[0] != name


@pytest.mark.parametrize("model", ["llama3:8b", "my model", "m@2024", "x" * 200])
def test_the_name_made_up_is_one_that_may_be_given(config: Config, model: str):
    """config.yaml of the run holds it: a name that the check refuses could be run, but never shown or resumed."""
    name, _ = find_run(changed(config, "run.name=null", f"endpoint.model={model}"))

    assert parse_config({"run": {"name": name}}).run.name == name


def test_auto_takes_the_run_that_is_there(config: Config):
    """Found or to be made, the name is the same."""
    before = find_run(config)[1].url
    store_run(config)

    assert find_run(config)[1].url == before


def test_never_makes_a_new_folder(config: Config):
    """-2, then -3: what is there is not touched."""
    fresh = changed(config, "run.resume=never")
    first = find_run(fresh)[0]
    store_run(config)
    second = find_run(fresh)[0]
    store_run(changed(config, "run.name=done-2"))

    assert (first, second, find_run(fresh)[0]) == ("done", "done-2", "done-3")


def test_always_never_starts(config: Config):
    """`resume` of a run that is not there is a mistake, not a new run."""
    with pytest.raises(ConfigError, match=r"no run to resume at .*done"):
        find_run(changed(config, "run.resume=always"))

    store_run(config)
    assert find_run(changed(config, "run.resume=always"))[0] == "done"


# --- settings ---


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("control.law=gradiant", "did you mean 'gradient'"),
        ("control.options={tolerence: 2}", "no option 'tolerence'"),
        ("control.start=600", None),  # the default bounds give way to what was given
        ("control.shadows=[aimdd]", "did you mean 'aimd'"),
        ("scorer.name=exat", "exact"),
        ("scorer.options={tolerance: 1}", "tolerance"),
        ("endpoint.base_url=sim://vlm", "vllm"),
        ("sim.options={slotss: 3}", "slots"),
    ],
)
def test_settings_are_tried_before_any_work(config: Config, override: str, text: str | None):
    """What is built from settings alone is built first, so that a typo costs nothing."""
    simulated = changed(config, "endpoint.base_url=sim://vllm", override)

    if text is None:
        check_settings(simulated)
        return
    with pytest.raises(ConfigError, match=text):
        check_settings(simulated)


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ({}, 1024),
        ({"law": "fixed"}, 16),
        ({"law": "fixed", "start": 64}, 64),
        ({"law": "fixed", "start": 8, "max_limit": 100}, 8),
        ({"law": "aimd-published"}, 128),
        ({"law": "aimd", "max_limit": 40}, 40),
        ({"law": "gradient", "start": 2000}, 2000),
    ],
)
def test_the_largest_limit_a_law_may_set(control: dict, expected: int):
    """It sizes the connection pools and the number of workers."""
    assert max_limit(parse_config({"control": control}).control) == expected


def test_every_law_has_a_largest_limit():
    """No law may be built whose pool could not be sized."""
    assert all(max_limit(parse_config({"control": {"law": law}}).control) >= 1 for law in LAW_NAMES)


# --- opening ---


def test_a_complete_run_opens_without_endpoint_or_ray(config: Config):
    """Nothing is looked at and nothing started: the table is printed from what is stored."""
    store = store_run(config, failed=(2,))

    with open_session(config) as session:
        assert session.is_complete
        assert (session.name, session.expected, session.owed) == ("done", 4, 0)
        assert (session.endpoint, session.ray) == (None, None)
        assert session.folder == Path(store.url)

    saved = parse_config(yaml.safe_load(store.get("config.yaml")))
    assert saved == config


def test_operational_settings_may_change(config: Config):
    """Another law, other workers: the same run, and config.yaml says how it was last opened."""
    store = store_run(config)

    with open_session(changed(config, "control.law=aimd", "run.workers=3", "endpoint.max_attempts=2")) as session:
        assert session.is_complete

    assert yaml.safe_load(store.get("config.yaml"))["control"]["law"] == "aimd"


def test_other_settings_are_refused_with_the_difference(config: Config):
    """Each changed setting on its line, stored -> now; the stored config stays."""
    store = store_run(config)
    store.put("config.yaml", b"as it was")

    with pytest.raises(StateError) as caught, open_session(changed(config, "prompt.system=Be brief.", "run.repeats=2")):
        pass

    lines = str(caught.value).splitlines()
    assert store.url in lines[0]
    assert '  semantic.prompt.system: null -> "Be brief."' in lines
    assert "  repeats: 1 -> 2" in lines
    assert store.get("config.yaml") == b"as it was"


def test_other_data_is_refused(config: Config, dataset: Path):
    """A changed row under the same ids is another run: scores of two datasets must not mix."""
    store_run(config)
    dataset.write_text(dataset.read_text().replace("2 + 1?", "2 + 2?"), encoding="utf-8")

    with pytest.raises(StateError, match="fingerprint: "), open_session(config):
        pass


def test_a_moved_dataset_is_the_same(config: Config, dataset: Path, tmp_path: Path):
    """Content counts, not the path."""
    store_run(config)
    moved = dataset.rename(tmp_path / "elsewhere.jsonl")

    with open_session(changed(config, f"dataset.path={moved}")) as session:
        assert session.is_complete


def test_a_missing_dataset_ends_it_before_anything_starts(config: Config, tmp_path: Path):
    """Not even the simulated server is started, and no folder is made."""
    absent = changed(config, "endpoint.base_url=sim://vllm", f"dataset.path={tmp_path / 'sumz.jsonl'}")

    with pytest.raises(DataError, match=r"no dataset at .*sumz.jsonl; did you mean .*sums.jsonl"), open_session(absent):
        pass

    assert not (tmp_path / "runs").exists()


def test_a_template_that_does_not_fit_the_data_is_refused(config: Config):
    """Also for a run that is complete: its name would lie."""
    store_run(config)

    with pytest.raises(ConfigError, match="no column 'questoin'; did you mean 'question'"):  # noqa: SIM117
        with open_session(changed(config, "prompt.template='{{ questoin }}'")):
            pass
