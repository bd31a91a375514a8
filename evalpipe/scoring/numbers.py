"""Numbers as people and models write them, read exactly: a Fraction, never a float."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

MAX_CHARS = 1_000  # of a text that is searched for a number; keeps every step below a millisecond
MAX_EXPONENT = 1_000  # 1e999999999 would fill the memory with zeros

_AS_ASCII = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "⁄": "/", "％": "%"})
_NOISE = re.compile(r"\\?[$€£¥₹]|\\[,!;]|\{,\}(?=\d{3})")
_FRAC = re.compile(r"\\[dt]?frac\{\s*(\d+)\s*\}\{\s*(\d+)\s*\}")
_TIMES_TEN = re.compile(r"\s*(?:\\times|\\cdot|[x×*])\s*10\s*(?:\^|\*\*)\s*\{?\s*([-+]?\d+)\s*\}?")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_SPACED = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?%?")
_NUMBER = re.compile(
    r"""(?<!\w)(?>
    (?P<sign>[-+]?)\ *
    (?:(?P<whole>\d+)\ +(?=\d+/\d))?                         # 1 1/2
    (?P<top>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?:[_']\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)
    (?:[eE](?P<exponent>[-+]?\d+))?
    (?:\ */\ *(?P<bottom>\d+(?:\.\d+)?))?
    \ *(?P<percent>\\?%)?
    )(?![A-Za-z]*\d|[²³¹⁰-₉¼-¾⅐-⅞])                          # 7a2f and 10⁵ hold no number; 20cm does
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Number:
    """What was written: value as it stands before a percent sign."""

    value: Fraction
    is_percent: bool = False


def parse_number(text: str) -> Number | None:
    """Read a text that is one number and nothing else; None when it is not.

    Read are integers, decimals, exponents, fractions (3/4, 1 1/2, LaTeX), thousands separators (comma, space,
    underscore, apostrophe), percent and currency signs. The comma is never a decimal sign.
    """
    if _INTEGER.fullmatch(text):  # most references and answers: 1 us instead of 15
        return Number(Fraction(int(text)))
    plain = _plain(text)
    match = _NUMBER.fullmatch(plain) if len(plain) <= MAX_CHARS else None
    return _value(match) if match else None


def find_number(text: str) -> Number | None:
    """Read the only number of a text such as "x = 42 apples"; None where there is none, or more than one.

    After the last "=" where there is one. Several numbers are no answer: to pick one would be to guess.
    """
    plain = _plain(text.rpartition("=")[2])
    matches = list(_NUMBER.finditer(plain)) if len(plain) <= MAX_CHARS else []
    return _value(matches[0]) if len(matches) == 1 else None


def _plain(text: str) -> str:
    if len(text) > MAX_CHARS:
        return text
    plain = _NOISE.sub("", text.translate(_AS_ASCII)).strip()
    plain = _TIMES_TEN.sub(r"e\1", _FRAC.sub(r"\1/\2", plain))
    return plain.replace(" ", "") if _SPACED.fullmatch(plain) else plain


def _value(match: re.Match[str]) -> Number | None:
    exponent = match["exponent"] or "0"
    if len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        return None
    value = Fraction(Decimal(re.sub(r"[,_']", "", match["top"]))) * Fraction(10) ** int(exponent)
    bottom = Fraction(Decimal(match["bottom"] or "1"))
    if bottom == 0:
        return None
    value = int(match["whole"] or "0") + value / bottom
    return Number(value=-value if match["sign"] == "-" else value, is_percent=match["percent"] is not None)
