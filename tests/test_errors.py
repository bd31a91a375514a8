"""The tree of errors: four classes say what to do, and all of them cross a process boundary whole."""

from __future__ import annotations

import pickle

import pytest

from evalpipe.errors import (
    ConfigError,
    DataError,
    EndpointError,
    EvalPipeError,
    Failure,
    Fenced,
    ItemRefused,
    Paused,
    Resumable,
    Retryable,
    RunFatal,
    StateError,
)

FAILURE = Failure("rate_limited", "429", "slow down", retry_after_s=2.5, rtt_s=0.1, request_id="r-1")


@pytest.mark.parametrize("kind", [Retryable, ItemRefused, RunFatal, Paused])
def test_an_endpoint_error_survives_pickling(kind: type[EndpointError]):
    """Class and failure come out as they went in: what to do follows from the class on the other side too."""
    copy = pickle.loads(pickle.dumps(kind(FAILURE)))

    assert type(copy) is kind
    assert copy.failure == FAILURE
    assert str(copy) == "rate_limited: slow down"


def test_a_failure_without_a_message_shows_its_kind():
    """No dangling colon."""
    assert str(Retryable(Failure("reset"))) == "reset"


def test_the_four_classes_exclude_each_other():
    """No error may be two of them: then what follows would depend on the order of the handlers."""
    four = [Retryable, ItemRefused, RunFatal, Paused]

    assert [one for one in four for other in four if one is not other and issubclass(one, other)] == []
    assert all(issubclass(one, EndpointError) for one in four)


def test_one_root_catches_all():
    """`except EvalPipeError` is enough for a caller; a fenced driver may go on later, a damaged run not."""
    assert all(issubclass(one, EvalPipeError) for one in (ConfigError, DataError, StateError, EndpointError))
    assert issubclass(Fenced, Resumable) and not issubclass(StateError, Resumable)
    assert not issubclass(ConfigError, StateError)
