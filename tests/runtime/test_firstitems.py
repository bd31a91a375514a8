"""A request that is wrong for every item is found out by the first few."""

import pytest

from evalpipe.runtime.firstitems import FirstItems


@pytest.mark.parametrize(
    ("answered", "failures", "kind"),
    [
        (0, {}, None),
        (0, {"bad_request": 7}, None),
        (0, {"bad_request": 8}, "bad_request"),
        (0, {"too_long": 30}, "too_long"),
        (0, {"bad_request": 7, "too_long": 1}, None),
        (1, {"bad_request": 7}, None),
        (2, {"bad_request": 48}, "bad_request"),
        (0, {"bad_request": 40, "too_long": 10}, "bad_request"),
        (3, {"bad_request": 47}, None),
        (10, {"bad_request": 190}, None),
        (9, {"bad_request": 191}, "bad_request"),
        (500, {}, None),
    ],
)
def test_when_the_first_items_end_a_run(answered: int, failures: dict[str, int], kind: str | None):
    """All of eight alike, or more than 95 % of fifty; the first look at fifty may come a little late."""
    assert FirstItems().judge(answered=answered, failures=failures) == kind


def test_after_fifty_it_has_nothing_to_say():
    """A server that begins to refuse everything in the middle is not a wrong request."""
    first = FirstItems()

    first.judge(answered=50, failures={"no_answer": 1})

    assert first.judge(answered=50, failures={"no_answer": 5_000}) is None
