"""A key that a job brings along in its runtime_env is refused: Ray shows it to everybody."""

from __future__ import annotations

import json

import pytest

from evalpipe.errors import ConfigError
from evalpipe.runtime.jobenv import JOB_ENV, refuse_keys

CANARY = "sk-canary-0123456789abcdef"


def job(env_vars: object = None, metadata: object = None) -> dict[str, str]:
    """The environment that Ray gives to the driver of a job."""
    return {JOB_ENV: json.dumps({"runtime_env": {"env_vars": env_vars or {}}, "metadata": metadata or {}})}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "anything-at-all"),
        ("HF_TOKEN", "anything"),
        ("AWS_SECRET_ACCESS_KEY", "anything"),
        ("RAY_AUTH_TOKEN", "anything"),
        ("db_password", "anything"),
        ("OPENAI_APIKEY", "anything"),
        ("MY_MODEL_ACCESS", "anything"),  # named by endpoint.api_key_env
        ("NOTE", CANARY),
        ("URL", f"https://host/?key={CANARY}"),
        ("HEADER", "Bearer 0123456789abcdef0123"),
        ("ID", "AKIAIOSFODNN7EXAMPLE"),
        ("JWT", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"),
    ],
)
def test_what_looks_like_a_key_is_refused(name: str, value: str):
    """By its name or by its value; one line that names the variable, does not show the value, and says what to do."""
    with pytest.raises(ConfigError) as refused:
        refuse_keys(job({name: value}), api_key_env="MY_MODEL_ACCESS")

    said = str(refused.value)
    assert repr(name) in said and "before `ray start`" in said
    assert value not in said and "\n" not in said


def test_metadata_is_looked_at_too():
    """`ray job submit --metadata-json` is listed like the rest."""
    with pytest.raises(ConfigError, match="metadata 'owner'"):
        refuse_keys(job(metadata={"owner": CANARY}), api_key_env="OPENAI_API_KEY")


@pytest.mark.parametrize(
    "env_vars",
    [
        {"RAY_JOB_STOP_WAIT_TIME_S": "60"},
        {"EVALPIPE__ENDPOINT__API_KEY_ENV": "MY_KEY"},
        {"OPENAI_API_KEY_FILE": "/run/secrets/key"},
        {"EVALPIPE__SAMPLING__MAX_TOKENS": "4096", "TOKENIZERS_PARALLELISM": "false", "MONKEY": "banana"},
        {"OPENAI_API_KEY": "none"},
        {"OPENAI_API_KEY": ""},
        {"AWS_ACCESS_KEY_ID": "minio"},
        {"NAME": "task-12-and-risk-of-something-long-enough"},
    ],
)
def test_settings_are_no_keys(env_vars: dict[str, str]):
    """What only says where a key is, counts tokens, or stands in for a key that no server wants."""
    refuse_keys(job(env_vars), api_key_env="OPENAI_API_KEY")


@pytest.mark.parametrize("environ", [{}, {JOB_ENV: ""}, {JOB_ENV: "no json"}, {JOB_ENV: "[1]"}, {JOB_ENV: "{}"}])
def test_outside_a_job_nothing_is_judged(environ: dict[str, str]):
    """Keys in the driver's own environment are where they belong."""
    refuse_keys({**environ, "OPENAI_API_KEY": CANARY}, api_key_env="OPENAI_API_KEY")


def test_a_runtime_env_of_another_form_is_no_error():
    """env_vars may be missing or null."""
    refuse_keys({JOB_ENV: json.dumps({"runtime_env": {"env_vars": None}, "metadata": None})}, api_key_env="K")
