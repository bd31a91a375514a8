"""Numbers as they are written."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.scoring.numbers import find_number, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-3.50", Fraction(-7, 2)),
        ("−7", -7),
        (".5", Fraction(1, 2)),
        ("1,234,567", 1_234_567),
        ("1 234 567.5", Fraction(2_469_135, 2)),
        ("1_000", 1000),
        ("1'000", 1000),
        ("1{,}000", 1000),
        ("3/4", Fraction(3, 4)),
        ("-1 1/2", Fraction(-3, 2)),
        ("\\dfrac{3}{4}", Fraction(3, 4)),
        ("1.5e3", 1500),
        ("2E-2", Fraction(1, 50)),
        ("6.02 \\times 10^{23}", 602 * 10**21),
        ("3 x 10^4", 30_000),
        ("$1,200.50", Fraction(2401, 2)),
        ("-€5", -5),
        ("5 €", 5),
        ("100000000000000000000000001", 100000000000000000000000001),
    ],
)
def test_numbers_are_read_exactly(text, value):
    """Every customary notation yields the exact fraction it stands for."""
    number = parse_number(text)

    assert number is not None
    assert (number.value, number.is_percent) == (value, False)


@pytest.mark.parametrize("text", ["50%", "50 %", "50\\%", "50％"])
def test_percent_is_kept_apart(text):
    """A percent sign does not change the value; who compares decides what it means."""
    number = parse_number(text)

    assert number is not None
    assert (number.value, number.is_percent) == (50, True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", ".", "five", "7a2f", "1.2.3", "1,5", "12,34", "1/0", "3-5", "10:30", "2024-01-05"),
        *("10⁵", "½", "2½", "nan"),
        *("inf", "0x1f", "1e99999", "1e-1001", "1e" + "9" * 30, "9" * 2000, "12.5x3", "1/2/3", "5,000,00"),
    ],
)
def test_what_is_no_number_is_refused(text):
    """Dates, ranges, versions, hexadecimals, decimal commas and endless exponents are not read as something near."""
    assert parse_number(text) is None
    assert find_number(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42 apples", 42),
        ("x = 7", 7),
        ("2 + 3 = 5", 5),
        ("about 20cm", 20),
        ("$5 each", 5),
        ("12 or 13", None),
        ("B12", None),
        ("none at all", None),
        ("a" * 2000 + " 5", None),
    ],
)
def test_the_only_number_is_found(text, value):
    """One number among words is read; of several none is chosen."""
    number = find_number(text)

    assert (number and number.value) == value


@given(st.integers(), st.integers(min_value=1))
def test_integers_and_fractions_survive_writing(top, bottom):
    """What Python writes is read back without loss, separators and size notwithstanding."""
    for text, value in ((f"{top:,}", Fraction(top)), (f"{top}/{bottom}", Fraction(top, bottom))):
        number = parse_number(text)

        assert number is not None
        assert number.value == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_writing(value):
    """The decimal text of a float is read as that decimal."""
    number = parse_number(repr(value))

    assert number is not None
    assert float(number.value) == value


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    """Nothing a model writes makes the reader fail."""
    parse_number(text)
    find_number(text)
