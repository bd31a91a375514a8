"""What providers do not take alike, read from how they refuse one test request. Pure.

Two things can be left out or renamed without changing an answer: the wish for token counts in streams, and the name of
the bound on tokens. A refused sampling setting is the user's to drop: without it the answers are other ones.
"""

from __future__ import annotations

import re

from evalpipe.config import EndpointConfig, SamplingConfig
from evalpipe.errors import ConfigError, Failure

_SAMPLING = ("temperature", "top_p", "stop", "seed")


def adapt(config: EndpointConfig, refused: Failure) -> tuple[EndpointConfig, str] | None:
    """Return the config with which to ask again and the line for the user, None where nothing is left to try."""
    if config.max_tokens_name == "max_tokens" and "max_completion_tokens" in refused.message:
        changed = config.model_copy(update={"max_tokens_name": "max_completion_tokens"})
        return changed, "the model takes max_completion_tokens, not max_tokens (endpoint.max_tokens_name)"
    if config.stream == "all" and config.include_usage:  # gateways seldom say that this is what they refuse
        changed = config.model_copy(update={"include_usage": False})
        return changed, "the server refuses stream_options; token counts are unknown (endpoint.include_usage: false)"
    return None


def check_sampling(sampling: SamplingConfig, refused: Failure) -> None:
    """Raise ConfigError when the refusal names a sampling setting that was sent."""
    sent = [name for name in _SAMPLING if getattr(sampling, name) not in (None, ())]
    for name in [*sent, *sampling.extra_body]:
        if re.search(rf"\b{re.escape(name)}\b", refused.message):
            where = "sampling" if name in _SAMPLING else "sampling.extra_body"
            empty = "[]" if name == "stop" else "null"
            raise ConfigError(
                f"the model does not take {where}.{name} as it is ({refused.message});"
                f" --set {where}.{name}={empty} leaves it out"
            )
