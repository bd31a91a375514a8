"""Values that cross processes come out as they went in."""

import pickle

import pytest

from evalpipe.control.observation import Observation, Outcome, Sample
from evalpipe.records import Example, Shard, WorkItem

ITEM = WorkItem(Example(3, "a", "sums", None, {"question": "1 + 1?"}, "{}"), repeat=2, generation=1)


@pytest.mark.parametrize(
    "value",
    [ITEM, Shard(7, [ITEM]), Observation(3, 5, samples=(Sample(Outcome.DROPPED, 0.1, "rate_limited", epoch=4),))],
    ids=lambda value: type(value).__name__,
)
def test_a_packed_value_survives_pickling(value: object):
    """Every field is back in its place, whatever its default."""
    assert pickle.loads(pickle.dumps(value)) == value
