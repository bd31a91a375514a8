"""Failures to be tried again: the ones users see, by kind, under the next generation."""

from __future__ import annotations

import pytest
from store.store_rows import Relay, SmallRun

from evalpipe.errors import ConfigError
from evalpipe.records import Key
from evalpipe.store.failed import failed_keys


@pytest.fixture
def small(tmp_path) -> SmallRun:
    small = SmallRun(Relay(tmp_path / "run"))
    small.log.commit([small.write([0, 1, 2, 3], failed=[1, 3])])
    return small


def test_a_failure_gets_the_next_generation(small: SmallRun):
    """Answers are left alone; what failed twice goes a third time."""
    small.log.commit([small.write([1, 3], generation=1, failed=[3])])

    assert failed_keys(small.store, small.log.state) == [Key(3, 0, 2)]


def test_only_the_kind_that_is_asked_for(small: SmallRun):
    """Both failures of this run are server errors."""
    keys = failed_keys(small.store, small.log.state, kind="server_error")

    assert sorted(keys) == [Key(1, 0, 1), Key(3, 0, 1)]


def test_an_unknown_kind_is_told_with_what_there_is(small: SmallRun):
    """A typo in the kind must not look like a run without failures."""
    with pytest.raises(ConfigError, match=r"no item failed with 'poisn'.*server_error \(2\)"):
        failed_keys(small.store, small.log.state, kind="poisn")


def test_nothing_failed_is_no_mistake(tmp_path):
    """A run without failures has nothing to try again, whatever the kind."""
    small = SmallRun(Relay(tmp_path / "run"))
    small.log.commit([small.write([0])])

    assert failed_keys(small.store, small.log.state, kind="poison") == []
