"""What a Ray job brought along: no key may be among it.

Ray keeps the runtime_env and the metadata of a job in clear text in its logs, in the job API and in `ray job list`, and
puts them into the driver's environment, where they are looked at here. A key belongs in the environment of `ray start`
on each node. Pure but for nothing: the caller hands in the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from evalpipe.errors import ConfigError

JOB_ENV = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray in the driver of a submitted job

#: Names of secrets by their words; API_KEY_ENV, TOKEN_FILE and the like only say where one is.
_SECRET_NAME = re.compile(
    r"(^|_)(API|ACCESS|AUTH|SECRET|PRIVATE)?(KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE
)
#: Values by the marks their issuers put on them, wherever they stand in a text.
_SECRET_VALUE = re.compile(
    r"\b(sk|pk|rk|gsk|xai|nvapi|hf|ghp|glpat|r8)[-_][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|\bBearer\s+\S{16,}|\beyJ[\w-]{10,}\.[\w-]{10,}\."
)
_PLACEHOLDERS = frozenset({"", "none", "empty", "dummy", "x"})  # what people give to servers that want no key


def refuse_keys(environ: Mapping[str, str], *, api_key_env: str) -> None:
    """Raise ConfigError where the job's runtime_env or metadata holds what looks like a key. Outside a job: nothing.

    api_key_env: the variable that this run reads its key from, a secret whatever it is called. The message names the
    variable and never shows its value.
    """
    for where, name, value in _texts(environ.get(JOB_ENV, "")):
        is_named = name == api_key_env or _SECRET_NAME.search(name) is not None
        if (is_named and value.lower() not in _PLACEHOLDERS) or _SECRET_VALUE.search(value):
            raise ConfigError(
                f"the job's {where} {name!r} looks like a key, and Ray shows it to everybody (logs, job API, `ray job"
                " list`): take it out, change that key, and export it before `ray start` on each node instead"
            )


def _texts(job_config: str) -> Iterator[tuple[str, str, str]]:
    """Yield where, name and value of all that a submitter wrote; nothing where Ray's text is not what we know."""
    try:
        given = json.loads(job_config)
    except ValueError:
        return
    runtime_env = _mapping(_mapping(given).get("runtime_env"))
    for where, pairs in (
        ("runtime_env env_vars", _mapping(runtime_env.get("env_vars"))),
        ("metadata", _mapping(_mapping(given).get("metadata"))),
    ):
        for name, value in pairs.items():
            yield where, str(name), str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
