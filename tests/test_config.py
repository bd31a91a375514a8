"""Settings: sources and their order, mistakes and what is said of them, what decides whether a run may be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalpipe.config import Config, load_config, parse_config
from evalpipe.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("control:\n  max_limit: 10\n  start: 4\nendpoint:\n  model: of-the-file\n", encoding="utf-8")
    return path


def test_defaults_need_nothing():
    """No file, no environment, no flag: a whole config."""
    assert load_config(environ={}) == Config()


def test_the_strongest_source_wins(file: Path):
    """File < environment < --set < flag; each lays over the ones before."""
    environ = {"EVALPIPE__CONTROL__MAX_LIMIT": "20", "EVALPIPE__CONTROL__MIN_LIMIT": "2", "OTHER__THING": "1"}

    config = load_config(
        file,
        environ=environ,
        overrides=["control.max_limit=30", "control.min_limit=3"],
        flags={"control.max_limit": 40, "control.start": None},
    )

    control = config.control
    assert (control.max_limit, control.min_limit, control.start) == (40, 3, 4)
    assert config.endpoint.model == "of-the-file"


def test_a_stored_config_is_a_base(file: Path):
    """A resumed run starts from what it was saved with."""
    stored = load_config(file, environ={})

    config = load_config(base=stored, overrides=["control.start=5"], environ={})

    assert (config.control.start, config.control.max_limit) == (5, 10)


def test_values_are_read_as_yaml():
    """Numbers, booleans, lists, null and a URL come out as YAML has them; what is no YAML is text."""
    config = load_config(
        overrides=[
            "sampling.temperature=null",
            "sampling.stop=[a, b]",
            "run.takeover=true",
            "control.options={tolerance: 2}",
            "endpoint.base_url=http://127.0.0.1:8000/v1",
            "prompt.template={{ question }}?",
        ],
        environ={},
    )

    assert config.sampling.temperature is None
    assert config.sampling.stop == ("a", "b")
    assert config.run.takeover is True
    assert config.control.options == {"tolerance": 2}
    assert config.endpoint.base_url == "http://127.0.0.1:8000/v1"
    assert config.prompt.template == "{{ question }}?"


def test_the_saved_form_reads_back(tmp_path: Path):
    """config.yaml of a run holds all settings: read back it is the same config."""
    config = parse_config(
        {
            "sampling": {"stop": ["\n\n", "é"], "extra_body": {"top_k": 5}},
            "run": {"workers": 3, "name": "a.b-c_d"},
            "control": {"law": "aimd", "options": {"cut": 0.7}, "shadows": ["gradient"]},
        }
    )
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")

    assert load_config(path, environ={}) == config


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"control": {"lwa": "aimd"}}, ["unknown key control.lwa", "did you mean 'law'?"]),
        ({"endpoints": {}}, ["unknown key endpoints", "did you mean 'endpoint'?"]),
        ({"sim": {"zzz": 1}}, ["unknown key sim.zzz", "known: accuracy, seed, faults, options"]),
        ({"endpoint": {"api_key": "sk-secret"}}, ["unknown key endpoint.api_key", "'api_key_env'"]),
        ({"dataset": {"limit": 0}}, ["dataset.limit", "greater than or equal to 1", "got 0"]),
        ({"run": {"workers": 0}}, ["run.workers", "at least 1", "got 0"]),
        ({"run": {"name": "../up"}}, ["run.name", "must match", "got '../up'"]),
        ({"run": {"resume": "maybe"}}, ["run.resume", "'auto', 'never' or 'always'", "got 'maybe'"]),
        ({"control": {"min_limit": 9, "max_limit": 3}}, ["control.min_limit must be <= control.max_limit", "9 and 3"]),
        ({"control": None}, ["control", "got None"]),
        ({"control": {1: 2}}, ["control.1", "Keys should be strings"]),
        ({"dataset": {"limit": 0, "seed": "x"}}, ["dataset.limit", "(and 1 more)"]),
    ],
)
def test_a_mistake_is_named(data: dict, words: list[str]):
    """One line: the source, the key, what was given, what would do; never the value of an unknown key."""
    with pytest.raises(ConfigError) as caught:
        parse_config(data, source="run.yaml")

    text = str(caught.value)
    assert text.startswith("run.yaml: ")
    assert [word for word in words if word not in text] == []
    assert "\n" not in text and "sk-secret" not in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("control: [1, 2", "is not valid YAML"),
        ("- a\n- b\n", "must hold a mapping of sections, got a list"),
        ("just text", "must hold a mapping of sections, got a str"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, content: str, text: str):
    """The file is named, in one line."""
    path = tmp_path / "run.yaml"
    path.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError, match=text) as caught:
        load_config(path, environ={})

    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_unreadable_file(tmp_path: Path):
    """Absent, a folder, not UTF-8: three plain messages, no other exception."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"run: {name: \xe9}")

    with pytest.raises(ConfigError, match="no such config file"):
        load_config(tmp_path / "absent.yaml", environ={})
    with pytest.raises(ConfigError, match="cannot read config file"):
        load_config(tmp_path, environ={})
    with pytest.raises(ConfigError, match="cannot read config file"):
        load_config(latin, environ={})


def test_an_empty_file_is_all_defaults(tmp_path: Path):
    """A file of comments only."""
    path = tmp_path / "run.yaml"
    path.write_text("# nothing yet\n", encoding="utf-8")

    assert load_config(path, environ={}) == Config()


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("control.start", "--set takes a.b=value, got 'control.start'"),
        ("control.law.x=1", "law is a value, not a section"),
        ("control.options=[1", "control.options: Input should be a valid dictionary, got '.1'"),
    ],
)
def test_a_wrong_override_is_named(override: str, text: str):
    """A --set without a value, below a value, or of another type is refused with its name."""
    with pytest.raises(ConfigError, match=text):
        load_config(base=Config(), overrides=[override], environ={})


@pytest.mark.parametrize("setting", ["headers={Authorization: s3cret}", "query={key: s3cret}"])
def test_what_lets_somebody_in_is_no_setting(setting: str):
    """A resolved config is stored with the run; the refusal does not show the value either."""
    with pytest.raises(ConfigError, match=r"would be stored with the run; .* endpoint\.api_key_env") as caught:
        load_config(overrides=[f"endpoint.{setting}"], environ={})

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "prompt.system=Be brief.",
        "prompt.few_shot=[{user: one, assistant: two}]",
        "sampling.max_tokens=16",
        "sampling.extra_body={top_k: 1}",
        "endpoint.model=other",
        "scorer.name=exact",
        "run.repeats=2",
        "dataset.limit=5",
        "dataset.seed=1",
        "dataset.expected_column=label",
    ],
)
def test_what_changes_answers_or_scores_makes_another_run(override: str):
    """Semantic settings change the hash."""
    assert load_config(overrides=[override], environ={}).semantic_hash() != Config().semantic_hash()


@pytest.mark.parametrize(
    "override",
    [
        "control.law=aimd",
        "control.max_limit=9",
        "endpoint.base_url=http://127.0.0.1:9",
        "endpoint.api_key_env=OTHER_KEY",
        "endpoint.max_attempts=2",
        "endpoint.max_tokens_name=max_completion_tokens",
        "endpoint.headers={OpenAI-Organization: o}",
        "run.workers=2",
        "run.name=x",
        "run.output=elsewhere",
        "run.store_prompts=false",
        "dataset.path=a/copy.parquet",
        "dataset.shuffle=false",
        "sim.accuracy=0.5",
    ],
)
def test_how_it_is_run_may_change_before_a_resume(override: str):
    """Operational settings leave the hash alone; the data is compared by fingerprint, not by path."""
    assert load_config(overrides=[override], environ={}).semantic_hash() == Config().semantic_hash()


def test_a_name_ends_where_it_ends():
    """A newline would become part of a folder's name."""
    with pytest.raises(ConfigError, match=r"run\.name"):
        parse_config({"run": {"name": "abc\n"}})


def test_a_mistake_in_workers_is_named_as_it_is_written():
    """The key of the message is one that the user knows, and one mistake counts as one."""
    with pytest.raises(ConfigError, match=r"run\.workers: (?!.*more)"):
        parse_config({"run": {"workers": "many"}})


def test_a_config_cannot_be_changed():
    """Settings are values: a change makes a new one."""
    config = Config()

    with pytest.raises(ValueError, match="frozen"):
        config.run.workers = 3


@pytest.mark.parametrize(("url", "expected"), [("sim://vllm", True), ("http://127.0.0.1/sim://", False), (None, False)])
def test_simulated_means_the_scheme(url: str | None, expected: bool):
    """Only sim:// starts a server beside the run."""
    assert parse_config({"endpoint": {"base_url": url}}).is_simulated is expected


def test_a_quota_is_declared_and_checked():
    """Requests and tokens a minute, and the share that is ours; what cannot be is refused with its name."""
    config = load_config(overrides=["quota.tpm=200000", "quota.share=0.5"], flags={"quota.rpm": 300.0}, environ={})

    assert (config.quota.rpm, config.quota.tpm, config.quota.share) == (300.0, 200_000.0, 0.5)
    for override in ("quota.rpm=0", "quota.tpm=-1", "quota.share=1.5", "quota.rpm=.inf"):
        with pytest.raises(ConfigError, match=override.split("=")[0]):
            load_config(overrides=[override], environ={})
