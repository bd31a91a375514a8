"""Headers of the usual providers, read into limit, left and seconds until whole."""

from __future__ import annotations

import pytest

from evalpipe.control.quota import Meter, Told
from evalpipe.endpoint.quota_headers import read_quota, reset_s

NOW = 1_790_000_000.0  # 2026-09-21T14:13:20Z


def test_openai_names_requests_and_tokens():
    """Both quotas, resets as durations."""
    told = read_quota(
        {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-reset-requests": "120ms",
            "x-ratelimit-limit-tokens": "200000",
            "x-ratelimit-remaining-tokens": "150000",
            "x-ratelimit-reset-tokens": "1m30s",
        },
        now=NOW,
    )

    assert told == Told(Meter(500, 499, pytest.approx(0.12)), Meter(200_000, 150_000, 90.0))


def test_anthropic_names_an_instant():
    """The reset is a time, in the provider's zone."""
    told = read_quota(
        {
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2026-09-21T14:13:40Z",
        },
        now=NOW,
    )

    assert told == Told(Meter(50, 0, 20.0), None)


def test_the_drafts_of_the_ietf():
    """No unit in the name: requests."""
    headers = {"ratelimit-limit": "100", "ratelimit-remaining": "3", "ratelimit-reset": "17"}

    assert read_quota(headers, now=NOW) == Told(Meter(100, 3, 17.0), None)


def test_no_headers_tell_nothing():
    """Most servers."""
    assert read_quota({"content-type": "text/event-stream"}, now=NOW) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("59.5", 59.5),
        (" 12 ", 12.0),
        ("250ms", 0.25),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("2d", 172_800.0),
        ("2026-09-21T14:13:21Z", 1.0),
        ("2026-09-21T16:13:21+02:00", 1.0),
        ("Mon, 21 Sep 2026 14:13:50 GMT", 30.0),
        ("1790000005", 5.0),
        ("1790000005500", 5.5),
        ("2020-01-01T00:00:00Z", 0.0),  # past
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("1m30", None),
        ("", None),
    ],
)
def test_resets_in_all_their_forms(text: str, seconds: float | None):
    """Seconds, durations, instants, Unix times; nonsense is nothing, and never negative."""
    assert reset_s(text, now=NOW) == (None if seconds is None else pytest.approx(seconds))


def test_numbers_that_are_none_are_left_out():
    """A limit that cannot be read does not hide what is left."""
    headers = {"x-ratelimit-limit-requests": "many", "x-ratelimit-remaining-requests": "3"}

    assert read_quota(headers, now=NOW) == Told(Meter(None, 3.0, None), None)
