"""What a response's headers say of quotas: the names and number formats of the usual providers, read into one value.

    x-ratelimit-limit-requests, -remaining-requests, -reset-requests, the same with -tokens     OpenAI and its likes
    anthropic-ratelimit-requests-limit, -requests-remaining, -requests-reset, the same tokens
    ratelimit-limit, ratelimit-remaining, ratelimit-reset, with or without x-                   drafts of the IETF

A reset is seconds, a duration ("1m30s", "250ms"), an instant (ISO 8601 or HTTP date) or a Unix time in seconds or
milliseconds. What cannot be read is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from evalpipe.control.quota import Meter, Told

Unit = Literal["requests", "tokens"]

#: How the names are made, the most specific first. {part}: limit, remaining or reset.
_NAMES: Mapping[Unit, tuple[str, ...]] = {
    "requests": (
        "x-ratelimit-{part}-requests",
        "anthropic-ratelimit-requests-{part}",
        "x-ratelimit-{part}",
        "ratelimit-{part}",
    ),
    "tokens": ("x-ratelimit-{part}-tokens", "anthropic-ratelimit-tokens-{part}"),
}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
#: A number above this is a Unix time: no quota is refilled in thirty years.
_UNIX_S, _UNIX_MS = 1e9, 1e12


def read_quota(headers: Mapping[str, str], *, now: float) -> Told | None:
    """Return what the headers say of quotas, None where they say nothing. now: seconds since the Unix epoch.

    headers: names in any case where the mapping does not mind it, else lower case.
    """
    requests, tokens = (_meter(headers, unit, now) for unit in _NAMES)
    return None if requests is None and tokens is None else Told(requests, tokens)


def _meter(headers: Mapping[str, str], unit: Unit, now: float) -> Meter | None:
    for name in _NAMES[unit]:
        left = headers.get(name.format(part="remaining"))
        if left is not None:
            limit, reset = (headers.get(name.format(part=part)) for part in ("limit", "reset"))
            return Meter(_number(limit), _number(left), None if reset is None else reset_s(reset, now=now))
    return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def reset_s(text: str, *, now: float) -> float | None:
    """Return the seconds until a quota is whole again, at least 0; None for what cannot be read."""
    text = text.strip()
    number = _number(text)
    if number is not None:
        at = number / 1000 if number >= _UNIX_MS else number if number >= _UNIX_S else None
        return number if at is None else max(at - now, 0.0)
    parts = _DURATION.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(count) * _UNITS_S[unit] for count, unit in parts)
    at = _instant(text)
    return None if at is None else max(at - now, 0.0)


def _instant(text: str) -> float | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return read(text).timestamp()
        except (ValueError, TypeError, OverflowError):
            continue
    return None
