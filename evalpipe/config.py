"""All settings of a run: frozen pydantic models with defaults, unknown keys refused with a suggestion.

Sources, strongest first: flags, `--set a.b=c`, environment `EVALPIPE__A__B`, the file. Secrets are never settings: the
key is named by `endpoint.api_key_env` and read where it is used. Semantic settings decide whether a run may be resumed
(`semantic()`); all others may change freely between a crash and the resume.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from evalpipe.errors import ConfigError

ENV_PREFIX = "EVALPIPE__"
SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
NAME_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class DatasetConfig(Section):
    """Which items. Columns are found by their usual names unless given."""

    path: str = "datasets/logic-5k.parquet"
    split: str = "train"  # of an hf:// dataset
    id_column: str | None = None  # None: item_id, id, custom_id, else the row number
    expected_column: str | None = None  # None: answer, expected, target, else no reference
    category_column: str | None = None  # None: category, subject, else none
    limit: int | None = Field(default=None, ge=1)  # seeded, stratified by category
    shuffle: bool = True  # partial scores are unbiased only when the order is random
    seed: int = 0


class Shot(Section):
    """One worked example, as two turns of a conversation; texts as they are, not templates."""

    user: str = Field(min_length=1)
    assistant: str = Field(min_length=1)


class PromptConfig(Section):
    """How an item becomes messages. Templates are Jinja, sandboxed; the dataset's columns are the names."""

    template: str = "{{ question }}"
    system: str | None = None
    few_shot: tuple[Shot, ...] = ()  # between the system message and the item
    instruction: str = "Think step by step, then give the final answer on the last line as 'Answer: X'."


class SamplingConfig(Section):
    temperature: float | None = Field(default=0.0, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int = Field(default=2048, ge=1)
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)


class EndpointConfig(Section):
    """Where requests go. base_url None: OPENAI_BASE_URL. model None: the only one that is served."""

    base_url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"  # or NAME_FILE: a 0400 file with the key, read again when it is refused
    stream: Literal["all", "sample", "none"] = "all"  # sample: a tenth, and all while few are in flight
    include_usage: bool = True  # stream_options; some gateways refuse it
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # preflight finds which
    headers: dict[str, str] = Field(default_factory=dict)  # OpenAI-Organization, ..; never a key
    query: dict[str, str] = Field(default_factory=dict)  # of every request: Azure's api-version
    key_header: str | None = None  # header that carries the key ("api-key" at Azure); None: Authorization: Bearer
    ca_file: str | None = None  # PEM of the authorities to trust instead of the system's
    connect_timeout_s: float = Field(default=10.0, gt=0)
    deadline_s: float | None = Field(default=None, gt=0)  # None: derived from max_tokens
    max_response_bytes: int = Field(default=16 * 2**20, ge=1024)
    max_attempts: int = Field(default=6, ge=1)
    max_outage_s: float = Field(default=1800.0, gt=0)
    first_success_s: float = Field(default=45.0, gt=0)  # before any success the run gives up after this
    trust_env: bool = False  # obey HTTP_PROXY
    trace_header: bool = False
    price_input: float | None = Field(default=None, ge=0)  # per million tokens, for --dry-run
    price_output: float | None = Field(default=None, ge=0)
    allow_insecure: bool = False  # plain http to a host that is neither loopback nor private

    @field_validator("headers", "query")
    @classmethod
    def _check_names(cls, sent: dict[str, str]) -> dict[str, str]:
        """A resolved config is stored with the run: what lets somebody in must not be in it."""
        for name in sent:
            if SECRET_NAME.search(name):
                raise ValueError(f"{name} would be stored with the run; name the variable in endpoint.api_key_env")
        return sent


class ControlConfig(Section):
    """The one limit on requests in flight. law "fixed" stays at start."""

    law: str = "auto"
    start: int | None = Field(default=None, ge=1)  # None: 16 (progress: 2, bbr-published: 20), within the bounds
    min_limit: int | None = Field(default=None, ge=1)  # None: the law's own
    max_limit: int | None = Field(default=None, ge=1)  # None: the law's own
    options: dict[str, Any] = Field(default_factory=dict)
    shadows: tuple[str, ...] = ()
    warm_start: bool = True  # begin near where the last run at this endpoint and model settled, unless start is given
    ttl_s: float = Field(default=15.0, gt=0)
    exchange_s: float = Field(default=0.1, gt=0)

    @model_validator(mode="after")
    def _check_ttl(self) -> ControlConfig:
        if self.ttl_s < 3 * self.exchange_s:
            raise ValueError(f"ttl_s must be at least 3 * exchange_s, got {self.ttl_s:g} and {self.exchange_s:g}")
        return self


class ScorerConfig(Section):
    """name: exact, numeric, choice, regex, json, auto (by the dataset's answer_type) or none."""

    name: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    answer_pattern: str | None = None  # group 1 is the final answer; None: 'Answer: X', \boxed{X}, else the last line


class SimConfig(Section):
    """Used only with base_url sim://PROFILE."""

    accuracy: float = Field(default=0.7, ge=0, le=1)
    seed: int = 0
    #: kind of misbehaviour -> share of requests, or {share, after, until} by number of the request
    faults: dict[str, float | dict[str, float]] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)  # overrides of the profile's parameters


class QuotaConfig(Section):
    """What the provider allows a minute, where that is known: then nothing is refused. None: found out on the way.

    tpm: tokens of prompts and answers. share: the fraction that this run may use, the rest is for others with the key.
    """

    rpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    share: float = Field(default=1.0, gt=0, le=1)


class BudgetConfig(Section):
    """What a run may spend before it stops (exit 79; a larger budget goes on). None: no bound."""

    tokens: int | None = Field(default=None, ge=1)  # of all answers of the run, prompts included
    money: float | None = Field(default=None, gt=0)  # in the currency of endpoint.price_input and price_output
    wall_s: float | None = Field(default=None, gt=0)  # of each start of the run


class RunConfig(Section):
    """One run. Everything here and in `budget`, `control`, `endpoint` (but the model) is operational."""

    name: str | None = None
    output: str | None = None  # folder or s3://.. that holds runs; None: EVALPIPE_RUNS, else ./runs
    workers: int | Literal["auto"] = "auto"
    repeats: int = Field(default=1, ge=1)
    resume: Literal["auto", "never", "always"] = "auto"
    takeover: bool = False
    fail_on_error: float = Field(default=0.0, ge=0, le=1)
    coverage: float = Field(default=0.95, ge=0, le=1)  # below it the headline says INCONCLUSIVE
    store_prompts: bool = True
    shard_size: int = Field(default=32, ge=1)
    flush_s: float = Field(default=2.0, gt=0)
    ray_address: str | None = None  # None: RAY_ADDRESS, else a local Ray for this run

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is not None and not NAME_PATTERN.fullmatch(name):
            raise ValueError(f"must match {NAME_PATTERN.pattern}, got {name!r}")
        return name

    @field_validator("workers")
    @classmethod
    def _check_workers(cls, workers: int | str) -> int | str:
        if isinstance(workers, int) and workers < 1:
            raise ValueError(f"must be 'auto' or at least 1, got {workers}")
        return workers


class Config(Section):
    """The whole of one run; `evalpipe run FILE` reads this."""

    run: RunConfig = Field(default_factory=RunConfig)
    dataset: DatasetConfig = Field(default_factory=DatasetConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig)
    control: ControlConfig = Field(default_factory=ControlConfig)
    quota: QuotaConfig = Field(default_factory=QuotaConfig)
    scorer: ScorerConfig = Field(default_factory=ScorerConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    sim: SimConfig = Field(default_factory=SimConfig)

    @model_validator(mode="after")
    def _check_bounds(self) -> Config:
        low, high = self.control.min_limit, self.control.max_limit
        if low is not None and high is not None and low > high:
            raise ValueError(f"control.min_limit must be <= control.max_limit, got {low} and {high}")
        return self

    @model_validator(mode="after")
    def _check_prices(self) -> Config:
        if self.budget.money is not None and not (self.endpoint.price_input or self.endpoint.price_output):
            raise ValueError("budget.money needs endpoint.price_input and price_output, per million tokens")
        return self

    @property
    def is_simulated(self) -> bool:
        return (self.endpoint.base_url or "").startswith("sim://")

    def semantic(self) -> dict[str, Any]:
        """Return the settings that change answers or scores; a run may be resumed only when these are equal.

        Where the dataset lies and the order of its items may change: its content is compared by fingerprint.
        """
        data = self.model_dump(mode="json")
        dataset = {k: v for k, v in data["dataset"].items() if k not in ("path", "split", "shuffle")}
        return {
            "dataset": dataset,
            "prompt": data["prompt"],
            "sampling": data["sampling"],
            "model": data["endpoint"]["model"],
            "scorer": data["scorer"],
            "repeats": data["run"]["repeats"],
        }

    def semantic_hash(self) -> str:
        """Return the sha256 (hex) of the canonical JSON of `semantic()`."""
        text = json.dumps(self.semantic(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_config(
    path: str | Path | None = None,
    *,
    base: Config | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read a YAML file, or take `base` (neither: all defaults), and lay environment, `--set` and flags over it.

    overrides: "a.b=value" texts, the value read as YAML. flags: dotted name -> value, None meaning not given.
    environ: defaults to os.environ. Raises ConfigError with the file, the key and what would do.
    """
    data = _read_yaml(Path(path)) if path is not None else {}
    if base is not None:
        data = base.model_dump(mode="json")
    for name, text in (os.environ if environ is None else environ).items():
        if name.startswith(ENV_PREFIX):
            _put(data, name[len(ENV_PREFIX) :].lower().split("__"), _parse_scalar(text))
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set takes a.b=value, got {override!r}")
        _put(data, name.strip().split("."), _parse_scalar(text))
    for name, value in (flags or {}).items():
        if value is not None:
            _put(data, name.split("."), value)
    is_pure = path is not None and not overrides and not any(value is not None for value in (flags or {}).values())
    return parse_config(data, source=str(path) if is_pure else "settings")


def parse_config(data: Mapping[str, Any], *, source: str = "settings") -> Config:
    """Check a plain mapping. Raises ConfigError naming the first wrong key and the nearest right one."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, source)) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no such config file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config file {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, got a {type(data).__name__}")
    return data


def _parse_scalar(text: str) -> Any:
    """Read YAML; what is none (a template such as `{{ question }}`) is taken as text, and judged by its setting."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _put(data: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    node = data
    for key in keys[:-1]:
        child = node.get(key)
        if child is None:
            child = node[key] = {}
        elif not isinstance(child, dict):
            raise ConfigError(f"{'.'.join(keys)}: {key} is a value, not a section")
        node = child
    node[keys[-1]] = value


def _explain(error: ValidationError, source: str) -> str:
    first = error.errors()[0]
    location = _as_written(first["loc"])
    where = f"{'.'.join(location)}: " if location else ""
    others = len({tuple(_as_written(each["loc"])) for each in error.errors()}) - 1
    more = f" (and {others} more)" if others else ""
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], _field_names(location[:-1]), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_field_names(location[:-1]))}"
        return f"{source}: unknown key {'.'.join(location)}; {hint}{more}"
    given = first.get("input")
    shown = (
        f", got {given!r}" if isinstance(given, str | int | float | bool | None) and "got" not in first["msg"] else ""
    )
    return f"{source}: {where}{first['msg'].removeprefix('Value error, ')}{shown}{more}"


def _as_written(loc: Sequence[str | int]) -> list[str]:
    """Return the keys of a location that a user can write: pydantic appends the member of a union to the field's."""
    location = [str(part) for part in loc]
    while len(location) > 1 and location[-1] not in _field_names(location[:-1]) and not _field_names(location[:-1]):
        location.pop()
    return location


def _field_names(location: Sequence[str]) -> list[str]:
    model: type[BaseModel] = Config
    for key in location:
        found = model.model_fields.get(key)
        candidates = [] if found is None else [found.annotation, *get_args(found.annotation)]
        section = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if section is None:
            return []
        model = section
    return list(model.model_fields)
