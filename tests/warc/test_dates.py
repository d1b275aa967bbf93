from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.warc.dates import date_key, is_date, parse_date, valid_date_key

fractions = st.text("0123456789", max_size=9)
# Few values, so that two of them are often equal.
forms = st.one_of(
    st.sampled_from(["2012", "2012-01", "2012-01-01", "2012-01-01T00:00Z", "2012-01-01t00:00:00z", "0001"]),
    st.builds(
        lambda second, fraction, end: f"2012-01-01T00:00:{second:02}.{fraction}{end}",
        st.integers(0, 1),
        st.sampled_from(["0", "5", "50", "500000000", "500000001", "000000001", "123456789"]),
        st.sampled_from("Zz"),
    ),
    st.builds(
        lambda date, fraction: (
            f"{date:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + (f".{fraction}Z" if fraction else "Z")
        ),
        st.datetimes(),
        fractions,
    ),
)


def nanoseconds(text: str) -> Fraction:
    """The time, without the arithmetic of the module; its fraction has up to nine digits."""
    fraction = text.partition(".")[2].rstrip("Zz")
    return int(parse_date(text).replace(microsecond=0).timestamp()) + Fraction(f"0.{fraction or '0'}")


@given(forms, forms)
def test_keys_are_equal_and_sort_like_the_times(first: str, second: str) -> None:
    times = nanoseconds(first), nanoseconds(second)
    keys = date_key(first), date_key(second)
    assert (keys[0] == keys[1], keys[0] < keys[1]) == (times[0] == times[1], times[0] < times[1])
    assert (keys[0][:19] == keys[1][:19]) == (int(times[0] // 1) == int(times[1] // 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2012-13-01T00:00:00Z",
        "2011-02-29T00:00:00Z",
        "2012-01-01T24:00:00Z",
        "2016-12-31T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "2012-01-01T00:00:00+01:00",
        "2012-01-01T00:00:00.1234567891Z",
        "２０１２-01-01T00:00:00Z",
        "20120101000000",
    ],
)
def test_an_invalid_date_has_no_key(text: str) -> None:
    assert valid_date_key(text) is None
    assert not is_date(text)
    with pytest.raises(ValueError):
        date_key(text)
