"""What is left out or renamed for a provider, and what only the user may leave out."""

import pytest

from evalpipe.config import EndpointConfig, SamplingConfig
from evalpipe.endpoint.adapt import adapt, check_sampling
from evalpipe.errors import ConfigError, Failure

WANTS_OTHER_NAME = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)


def refusal(message: str) -> Failure:
    return Failure("bad_request", message=message)


def test_the_other_name_of_the_bound_is_taken_where_the_model_asks_for_it():
    """Token counts in streams are still asked for: they were not what was refused."""
    adapted = adapt(EndpointConfig(), refusal(WANTS_OTHER_NAME))

    assert adapted is not None
    config, line = adapted
    assert (config.max_tokens_name, config.include_usage) == ("max_completion_tokens", True)
    assert "max_completion_tokens" in line


def test_a_refusal_without_a_reason_costs_the_token_counts_first():
    """Gateways that know no stream_options say anything."""
    adapted = adapt(EndpointConfig(), refusal("Bad Request"))

    assert adapted is not None and not adapted[0].include_usage


@pytest.mark.parametrize("config", [EndpointConfig(stream="none"), EndpointConfig(include_usage=False)])
def test_there_is_an_end_to_trying(config: EndpointConfig):
    """Nothing optional is asked for any more: the refusal stands."""
    assert adapt(config, refusal("Bad Request")) is None


def test_the_same_change_is_made_once():
    """A server that goes on complaining is not asked for ever."""
    config = EndpointConfig(stream="none", max_tokens_name="max_completion_tokens")

    assert adapt(config, refusal(WANTS_OTHER_NAME)) is None


@pytest.mark.parametrize(
    ("sampling", "message", "remedy"),
    [
        (SamplingConfig(), "'temperature' does not support 0 with this model", "--set sampling.temperature=null"),
        (SamplingConfig(stop=("x",)), "Unsupported parameter: stop", "--set sampling.stop=[]"),
        (SamplingConfig(extra_body={"top_k": 3}), "unknown field top_k", "--set sampling.extra_body.top_k=null"),
    ],
)
def test_a_refused_setting_is_the_users_to_drop(sampling: SamplingConfig, message: str, remedy: str):
    """Without it the answers would be other ones, so it is not dropped in silence."""
    with pytest.raises(ConfigError) as caught:
        check_sampling(sampling, refusal(message))

    assert message in str(caught.value) and remedy in str(caught.value)


@pytest.mark.parametrize("message", ["seed is not supported", "max_tokens too large", "no stopping here", ""])
def test_what_was_not_sent_is_not_to_blame(message: str):
    """Settings that are not set, and words that only look like one."""
    check_sampling(SamplingConfig(stop=("x",)), refusal(message))
