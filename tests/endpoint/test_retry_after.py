"""How long the server asks us to wait."""

import pytest

from evalpipe.endpoint.failures import classify_status
from evalpipe.endpoint.retry_after import retry_after_s

NOON = 1_700_049_600.0  # Wed, 15 Nov 2023 12:00:00 GMT


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": " 120 "}, 120.0),
        ({"retry-after": "3600"}, 300.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"retry-after": "Wed, 15 Nov 2023 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Wed, 15 Nov 2023 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 15 Nov 2033 12:00:00 GMT"}, 300.0),
        ({"retry-after": "Wed, 15 Nov 2023 99:00:00 GMT"}, None),
        ({"retry-after": "Wed, 15 Nov 2023 12:00:30 GMT", "date": "Wed, 15 Nov 2023 12:00:20 GMT"}, 10.0),
        ({"retry-after": "Wed, 15 Nov 2023 12:00:30 GMT", "date": "today"}, 30.0),
    ],
)
def test_the_wait_is_read_or_ignored(headers, expected):
    """Any form is understood, nonsense is no wait, and no wait is longer than five minutes."""
    assert retry_after_s(headers, now=NOON) == expected


def test_the_wait_is_in_the_failure_whatever_the_case_of_the_header():
    """A plain mapping with the server's own spelling works as well as a header object."""
    assert classify_status(429, headers={"Retry-After": "7"}).failure.retry_after_s == 7.0
