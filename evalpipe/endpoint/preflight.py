"""What a look of a few seconds can see before a run: is the server there, the key good, the model served?

Refuses at once what would fail for every item. What may pass by itself (busy, one bad answer) is a note, not a refusal.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import orjson

from evalpipe.config import EndpointConfig, SamplingConfig
from evalpipe.endpoint.adapt import adapt, check_sampling
from evalpipe.endpoint.address import ignored_proxy, resolve_base_url
from evalpipe.endpoint.client import Endpoint
from evalpipe.endpoint.failures import TABLE, make
from evalpipe.endpoint.keys import key_source
from evalpipe.errors import EndpointError, ItemRefused, Retryable, RunFatal
from evalpipe.records import Key, Request

# in sum, with a second call, below the 10 s within which a run must start or refuse
LIST_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 2.5
METRICS_TIMEOUT_S = 1.5

TRIES = 3  # a lone reset or HTML page is normal with some servers
FLAVOURS = ("vllm", "sglang", "llamacpp")
_SHOWN_MODELS = 10
_NO_SERVER = frozenset({"connect_failed", "reset", "timeout"})
_PROBE = Request(
    key=Key(0), item_id="preflight", messages=({"role": "user", "content": "Hi"},), prompt="Hi", prompt_sha256=""
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found. The worker's Endpoint is built from base_url and model.

    models_served: empty when the server lists none. streams_usage: whether a stream brings its token counts; None when
    not streaming or not seen. metrics_flavour: "vllm", "sglang", "llamacpp" or "none". notes: lines for the user.
    config: the settings with which this server answers.
    """

    base_url: str
    model: str
    models_served: tuple[str, ...]
    streams_usage: bool | None
    metrics_flavour: str
    notes: tuple[str, ...]
    config: EndpointConfig


async def preflight(
    config: EndpointConfig, sampling: SamplingConfig | None = None, *, environ: Mapping[str, str] | None = None
) -> Preflight:
    """Look at the endpoint for at most 10 seconds: its models, one call of one token, its metrics.

    environ: os.environ by default. Raises ConfigError for a URL that is missing or unsafe and for a sampling setting
    that the model refuses, and RunFatal of kind unreachable, auth, quota, no_model, model_not_found or redirected.
    """
    environ = os.environ if environ is None else environ
    base_url = resolve_base_url(config, environ)
    notes: list[str] = []
    if proxy := ignored_proxy(config, environ):
        notes.append(f"{proxy} is set and ignored; endpoint.trust_env: true obeys it")
    one_token = (sampling or SamplingConfig()).model_copy(update={"max_tokens": 1})
    look = _Look(config, one_token, base_url, environ, notes)
    served = await look.list_models()
    model = choose_model(config.model, served, base_url=base_url)
    streams_usage, config = await look.call(model)
    flavour = await look.metrics_flavour()
    return Preflight(base_url, model, served, streams_usage, flavour, tuple(notes), config)


def choose_model(wanted: str | None, served: tuple[str, ...], *, base_url: str) -> str:
    """Return the model to ask for: the wanted one, or the only one there is.

    served: as the server lists them; empty when it lists none, then the wanted one is taken on trust.
    Raises RunFatal of kind "no_model" that names what is served and the nearest name.
    """
    shown = ", ".join(served[:_SHOWN_MODELS]) + (
        f" and {len(served) - _SHOWN_MODELS} more" * (len(served) > _SHOWN_MODELS)
    )
    if wanted is None:
        if len(served) == 1:
            return served[0]
        found = f"{base_url} serves several: {shown}" if served else f"{base_url} does not list what it serves"
        raise make("no_model", f"no model given and {found}; choose one with --model")
    if not served or wanted in served:
        return wanted
    near = list(served) if len(served) == 1 else difflib.get_close_matches(wanted, served, n=1, cutoff=0.4)
    hint = f" Did you mean --model {near[0]}?" if near else " Choose one with --model."
    raise make("no_model", f"model {wanted} is not served at {base_url} (served: {shown}).{hint}")


@dataclass(frozen=True, slots=True)
class _Look:
    """The requests of one preflight; what is odd but not fatal goes into notes."""

    config: EndpointConfig
    sampling: SamplingConfig
    base_url: str
    environ: Mapping[str, str]
    notes: list[str]

    async def list_models(self) -> tuple[str, ...]:
        """Return the served names, empty when the server does not tell; a key it refuses is judged by the call."""
        try:
            body = await self._patiently(lambda e, s: e.get("/models", deadline_s=s), timeout_s=LIST_TIMEOUT_S)
            return _model_names(body)
        except EndpointError as error:
            kind = error.failure.kind
            if kind in _NO_SERVER:
                raise self._unreachable(error) from None
            if isinstance(error, RunFatal) and not (kind == "auth" and self.config.model):
                raise self._explained(error) from None
            self.notes.append(f"the server does not list its models ({error.failure.message})")
            return ()

    async def call(self, model: str) -> tuple[bool | None, EndpointConfig]:
        """Ask for one token, if need be without what this server does not take.

        Returns whether the stream brought usage, None when that was not seen, and the settings that were answered.
        """
        try:
            return await self._call_until_taken(self.config, model)
        except RunFatal as error:
            raise self._explained(error) from None
        except EndpointError as error:
            if error.failure.kind in (*_NO_SERVER, "bad_body", "not_found") and error.failure.kind != "timeout":
                raise self._unreachable(error) from None
            verb = "was refused" if isinstance(error, ItemRefused) else "got no answer"
            self.notes.append(f"the test request {verb}: {error.failure.message}")
        return None, self.config

    async def _call_until_taken(self, config: EndpointConfig, model: str) -> tuple[bool | None, EndpointConfig]:
        """See `call`. Raises the first refusal when nothing that can be changed helps."""
        try:
            told = await self._call(config, model)
        except ItemRefused as error:
            refused = error
        else:
            if config.stream == "none":
                return None, config
            return told, config.model_copy(update={"include_usage": config.include_usage and told})
        check_sampling(self.sampling, refused.failure)
        adapted = None if refused.failure.kind == "not_found" else adapt(config, refused.failure)
        if adapted is None:
            raise refused
        try:
            found = await self._call_until_taken(adapted[0], model)
        except ItemRefused:
            raise refused from None
        self.notes.append(adapted[1])
        return found

    async def _call(self, config: EndpointConfig, model: str) -> bool:
        """Return whether the answer brought its usage."""
        completion = await self._patiently(
            lambda e, s: e.send(_PROBE, deadline_s=s),
            timeout_s=CALL_TIMEOUT_S,
            config=config.model_copy(update={"model": model}),
        )
        return completion.usage_source == "server"

    async def metrics_flavour(self) -> str:
        """Return whose names /metrics uses; it lies beside /v1, not below it."""
        url = self.base_url.removesuffix("/v1") + "/metrics"
        try:
            body = await self._patiently(lambda e, s: e.get(url, deadline_s=s), timeout_s=METRICS_TIMEOUT_S)
        except EndpointError:
            return "none"
        return next((name for name in FLAVOURS if f"{name}:".encode() in body), "none")

    async def _patiently(
        self,
        ask: Callable[[Endpoint, float], Awaitable[T]],
        *,
        timeout_s: float,
        config: EndpointConfig | None = None,
    ) -> T:
        """Ask up to three times within timeout_s, while what comes back may be a lone fault."""
        config = config or self.config
        model = config.model or ""
        endpoint = Endpoint(config, self.sampling, model=model, base_url=self.base_url, cap=1, environ=self.environ)
        ends_at = time.monotonic() + timeout_s
        try:
            for _ in range(TRIES - 1):
                try:
                    return await ask(endpoint, ends_at - time.monotonic())
                except Retryable as error:
                    if error.failure.kind in ("connect_failed", "timeout"):
                        raise
            return await ask(endpoint, ends_at - time.monotonic())
        finally:
            await endpoint.aclose()

    def _unreachable(self, error: EndpointError) -> EndpointError:
        return make("unreachable", f"no usable server at {self.base_url}: {error.failure.message}")

    def _explained(self, error: RunFatal) -> RunFatal:
        """Say it in our words, with the server's behind them; of a refused key, which variable it came from."""
        failure = error.failure
        if failure.kind == "auth":
            name = key_source(self.config.api_key_env, self.environ)
            key = f"the key in {name}" if self.environ.get(name) else f"a request without a key, {name} is not set"
            return RunFatal(replace(failure, message=f"{self.base_url} refuses {key}: {failure.message}"))
        line = TABLE[failure.kind].line
        message = failure.message if failure.message.startswith(line) else f"{line} ({failure.message})"
        return RunFatal(replace(failure, message=f"{self.base_url}: {message}"))


def _model_names(body: bytes) -> tuple[str, ...]:
    """Return the ids of a /models body. Raises Retryable of kind bad_body when it holds no list."""
    try:
        entries = orjson.loads(body)["data"]
        return tuple(str(entry["id"]) for entry in entries)
    except (ValueError, TypeError, KeyError):
        raise make("bad_body", "/models does not hold a list of models") from None
