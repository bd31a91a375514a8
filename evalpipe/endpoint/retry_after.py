"""How long a server asks us to wait: seconds, milliseconds or an HTTP date, and whatever nonsense is sent instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_S = 300.0  # a server that asks for more is asked again after this


def retry_after_s(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the wait the server asks for, in [0, 300] seconds; None when it asks for none or for nonsense.

    headers: lower-case names. `retry-after-ms` (milliseconds) wins over `retry-after` (seconds or HTTP date). A date is
    measured against the response's own Date where there is one, else against now (seconds since the Unix epoch).
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER_S)
    text = headers.get("retry-after", "").strip()
    seconds = _number(text)
    if seconds is None and (until := _epoch(text)) is not None:
        sent = _epoch(headers.get("date", ""))
        seconds = max(0.0, until - (now if sent is None else sent))
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _epoch(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
