"""The agenda: what is owed, in the order to run, whatever the log has."""

from __future__ import annotations

import numpy as np
from store.store_rows import Relay, SmallRun

from evalpipe.records import Key
from evalpipe.runtime.agenda import again, owed
from evalpipe.store.state import LogState


def test_without_a_log_all_is_owed():
    """Every repeat of every item, items in the order given, the repeats of one together."""
    agenda = owed(LogState(), order=np.array([2, 0, 1]), repeats=2)

    assert agenda.count == 6
    assert list(agenda.keys) == [Key(2, 0), Key(2, 1), Key(0, 0), Key(0, 1), Key(1, 0), Key(1, 1)]


def test_what_has_a_result_is_not_owed(tmp_path):
    """Answered or failed: a plain resume does neither again."""
    small = SmallRun(Relay(tmp_path / "run"))
    small.log.commit([small.write([0, 1, 3], failed=[3])])

    agenda = owed(small.log.state, order=np.arange(5), repeats=1)

    assert agenda.count == 2
    assert list(agenda.keys) == [Key(2), Key(4)]


def test_failed_items_go_again_in_the_order_to_run():
    """A new generation of chosen keys follows the seeded order too."""
    agenda = again([Key(0, 0, 1), Key(3, 1, 2)], order=np.array([3, 2, 1, 0]))

    assert agenda.count == 2
    assert list(agenda.keys) == [Key(3, 1, 2), Key(0, 0, 1)]
