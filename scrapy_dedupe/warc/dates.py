"""Dates of an archive: the text of ``WARC-Date`` and the digits in a crawl index.

WARC-Date is written with exactly three fraction digits (``2026-11-28T00:00:00.123Z``; WARC 1.1, section 5.4). The index
holds dates of 14 digits (seconds) or 17 (milliseconds). Converting such a text to digits and back changes nothing, so a
revisit has exactly the date of its original. Dates of other programs may have one to nine fraction digits, or leave out
everything after the year.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

_TEXT = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?Z)?)?)?",
    re.ASCII | re.IGNORECASE,
)
# The usual form, whose parts need no conversion.
_PLAIN = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?Z", re.ASCII)
# As this package writes it.
_USUAL = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d\.\d{3}Z", re.ASCII)
NOT_DIGITS = str.maketrans("", "", "-T:.Z")
"""Removes all but the digits of a date in the usual form, by str.translate()."""
_DIGITS = re.compile(r"\d{14}(?:\d{3})?", re.ASCII)


def now() -> datetime:
    """Return the current time in UTC, in whole milliseconds."""
    return in_milliseconds(datetime.now(UTC))


def in_milliseconds(date: datetime) -> datetime:
    """Return the aware *date* in UTC, cut (not rounded) to milliseconds."""
    if date.tzinfo is None:
        raise ValueError(f"The date {date.isoformat()} has no time zone; give an aware datetime.")
    date = date.astimezone(UTC)
    return date.replace(microsecond=date.microsecond // 1000 * 1000)


def format_date(date: datetime) -> str:
    """Return the WARC-Date of the aware *date*.

    >>> format_date(datetime(2026, 11, 28, 1, 2, 3, 123999, tzinfo=UTC))
    '2026-11-28T01:02:03.123Z'
    """
    return in_milliseconds(date).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


# A record is compared with its entries several times.
@lru_cache(64)
def parse_date(text: str) -> datetime:
    """Return the aware datetime of a WARC-Date; digits below a microsecond are cut. Raises ValueError."""
    if _USUAL.fullmatch(text):
        return datetime.fromisoformat(text)
    year, month, day, hour, minute, second, fraction = _parts(text)
    microsecond = int((fraction or "")[:6].ljust(6, "0"))
    return datetime(
        int(year), int(month), int(day), int(hour), int(minute), int(second), microsecond, tzinfo=UTC
    )


def date_key(text: str) -> str:
    """Return the time of a WARC-Date as a text that sorts by time and is the same for all forms of this time.

    All fraction digits count, but not zeros at the end. The first 19 characters are the second. Raises ValueError.

    >>> date_key("2012-04-08T20:13:38.50Z"), date_key("2012")
    ('2012-04-08T20:13:38.5', '2012-01-01T00:00:00')
    """
    if _PLAIN.fullmatch(text) and _is_valid(text[:10]):
        return text[:19] if len(text) == 20 else text[:-1].rstrip("0").rstrip(".")
    parse_date(text)  # raises for dates that do not exist
    year, month, day, hour, minute, second, fraction = _parts(text)
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}.{fraction or ''}".rstrip("0").rstrip(".")


def valid_date_key(text: str | None) -> str | None:
    """Return the `date_key` of a valid date; None if there is no date, or if it is invalid."""
    try:
        return date_key(text) if text else None
    except ValueError:
        return None


def is_date(text: str) -> bool:
    """Whether a WARC-Date is valid.

    >>> is_date("2026-11-28T01:02:03Z"), is_date("2026-11-28T01:02:03+01:00")
    (True, False)
    """
    # Parse each day only once.
    return _is_valid(text[:10] if _PLAIN.fullmatch(text) else text)


@lru_cache(maxsize=4_096)
def _is_valid(text: str) -> bool:
    try:
        return bool(parse_date(text))
    except ValueError:
        return False


@lru_cache(64)
def date_digits(text: str) -> str:
    """Return the digits of a WARC-Date: 17 if it has a fraction, else 14. Raises ValueError.

    >>> date_digits("2026-11-28T00:00:00.123Z"), date_digits("2026-11-28T00:00:00Z")
    ('20261128000000123', '20261128000000')
    """
    parse_date(text)  # raises for dates that do not exist
    if _USUAL.fullmatch(text):
        return text.translate(NOT_DIGITS)
    *parts, fraction = _parts(text)
    return "".join(parts) + ((fraction[:3].ljust(3, "0")) if fraction else "")


@lru_cache(64)
def date_from_digits(digits: str) -> str:
    """Return the WARC-Date of 14 digits (seconds) or 17 (milliseconds). Raises ValueError.

    >>> date_from_digits("20261128000000123"), date_from_digits("20261128000000")
    ('2026-11-28T00:00:00.123Z', '2026-11-28T00:00:00Z')
    """
    if not _DIGITS.fullmatch(digits):
        raise ValueError(f"{digits!r} is not a date of 14 or 17 digits.")
    d = digits
    fraction = f".{d[14:]}" if len(d) == 17 else ""
    text = f"{d[:4]}-{d[4:6]}-{d[6:8]}T{d[8:10]}:{d[10:12]}:{d[12:14]}{fraction}Z"
    parse_date(text)
    return text


def _parts(text: str) -> tuple[str, str, str, str, str, str, str | None]:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a WARC-Date such as 2026-11-28T00:00:00.123Z.")
    year, month, day, hour, minute, second, fraction = match.groups()
    return year, month or "01", day or "01", hour or "00", minute or "00", second or "00", fraction
