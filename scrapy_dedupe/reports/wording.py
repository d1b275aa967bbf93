"""Numbers, sizes, times and texts from the web in readable form.

In texts from the web, control characters and direction marks are replaced before they are stored or shown, so that a URL
cannot look like another one. Long texts are shortened; in the middle when they are shown, where URLs differ least.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import blake2b
from urllib.parse import urlsplit

COPIES = {
    "unchanged": "unchanged since an earlier visit",
    "exact": "equal to another page",
    "changed": "changed little since an earlier visit",
    "near": "nearly equal to another page",
}
"""The descriptions of duplicates, in the order in which they are listed."""

SIZE_UNITS = (("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12), ("PB", 10**15))
"""The decimal units of sizes above bytes."""

_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_SHOWN_CHARS = 90
# Longer URLs may have been shortened when they were stored.
_MAX_LINK_CHARS = 1_999

MOST_CHARS = 2_000
MOST_HOST_CHARS = 253

# Control characters, lone surrogates, and characters that change the direction of the following text, which could make
# a URL look like another one.
_NEVER_STORED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")
_MIME_CHARS = re.compile(r"[a-z0-9!#$&^_.+*-]+/[a-z0-9!#$&^_.+*-]+")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")


def clean(text: str) -> str:
    r"""A text with a replacement character for invisible characters and characters that change how the rest is shown.

    >>> clean("a\x00b\u202ec")
    'a�b�c'
    """
    return _HARMFUL.sub("\ufffd", text)


def shortened(text: str, chars: int = _SHOWN_CHARS) -> str:
    """A text of at most *chars* characters; longer texts lose their middle.

    >>> shortened("https://example.com/a/very/long/path", 20)
    'https://exam…ng/path'
    """
    if len(text) <= chars:
        return text
    tail = (chars - 1) * 2 // 5
    return f"{text[: chars - 1 - tail]}…{text[len(text) - tail :]}"


def drawn(text: str, chars: int) -> str:
    """A text for a chart: shortened, and without characters above U+FFFF, which vl-convert may cut in two.

    >>> drawn("a\U0001f980b", 10)
    'a�b'
    """
    return _ASTRAL.sub("\ufffd", shortened(clean(text), chars))


def is_link(url: str) -> bool:
    """Whether a URL may become a link: a complete http(s) URL with a host and without invisible characters.

    >>> is_link("https://example.com/"), is_link("javascript:alert(1)"), is_link("https:///path")
    (True, False, False)
    """
    if len(url) > _MAX_LINK_CHARS or _HARMFUL.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def left_out_groups(shown: int, more: int | None) -> str:
    """A sentence that says how many groups of duplicates are shown. *more* is the number of others, None if unknown.

    >>> left_out_groups(30, 1_204)
    'Only the 30 largest of 1,234 groups of duplicates are shown.'
    """
    of_all = "" if more is None else f"of {number(shown + more)} "
    return f"Only the {number(shown)} largest {of_all}groups of duplicates are shown."


def number(value: int) -> str:
    """A count with thousands separators.

    >>> number(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def large_number(value: int) -> str:
    """A count in few characters, also for large numbers.

    >>> large_number(999_999), large_number(1_234_567), large_number(99_950_000), large_number(3_000_000_000)
    ('999,999', '1.23 million', '100 million', '3 billion')
    """
    if value < 1_000_000:
        return number(value)
    scaled, units = value / 1_000_000, ["trillion", "billion", "million"]
    # Three significant digits, without trailing zeros.
    while float(f"{scaled:.3g}") >= 1_000 and len(units) > 1:
        scaled /= 1_000
        units.pop()
    return f"{float(f'{scaled:.3g}') if scaled < 1_000 else round(scaled):,.10g} {units[-1]}"


def size(size_bytes: int) -> str:
    """A size in the decimal unit that keeps it short.

    >>> size(999), size(1_500), size(999_960), size(2_340_000_000)
    ('999 B', '1.5 kB', '1.0 MB', '2.3 GB')
    """
    if size_bytes < 1_000:
        return f"{size_bytes} B"
    fitting = (pair for pair in SIZE_UNITS if size_bytes / pair[1] < 999.95)
    unit, unit_bytes = next(fitting, SIZE_UNITS[-1])
    return f"{size_bytes / unit_bytes:,.1f} {unit}"


def percent(part: float, whole: float) -> str:
    """A percentage; empty if *whole* is 0. Only 0 is shown as 0 %, and only the whole as 100 %.

    >>> percent(1, 4), percent(1, 4_000), percent(3_999, 4_000), percent(0, 0)
    ('25 %', 'below 1 %', 'above 99 %', '')
    """
    if whole <= 0:
        return ""
    share = 100 * part / whole
    if 0 < share < 1:
        return "below 1 %"
    if 99 < share < 100:
        return "above 99 %"
    return f"{share:.0f} %"


def share(value: float) -> str:
    """A share from 0 to 1 as a percentage, never rounded up to 100 %.

    >>> share(1.0), share(0.9999), share(0.87)
    ('100 %', 'above 99 %', '87 %')
    """
    return percent(value, 1)


def similarity(value: float) -> str:
    """The similarity of near copies as a percentage; never 100 %, since equal texts are not near copies.

    >>> similarity(1.0), similarity(0.953)
    ('above 99 %', '95 %')
    """
    return share(min(value, 0.9999))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "page"), counted(1_200, "page"), counted(0, "copy", "copies")
    ('1 page', '1,200 pages', '0 copies')
    """
    return f"{number(count)} {noun if count == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """A duration in one or two units.

    >>> duration(45), duration(60), duration(5400), duration(200_000)
    ('45 s', '1 min', '1 h 30 min', '2 d 7 h')
    """
    left = round(seconds)
    parts: list[str] = []
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, unit)
        if count or (not parts and unit == 1):
            parts.append(f"{count:,} {name}")
        elif parts:
            break
    return " ".join(parts[:2])


def moment(iso: object) -> datetime | None:
    """A time in ISO 8601 as UTC; None if it is no text or invalid.

    >>> moment("2026-11-29T09:07:00Z").isoformat()
    '2026-11-29T09:07:00+00:00'
    """
    try:
        found = datetime.fromisoformat(iso)  # type: ignore[arg-type]
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def time(iso: str | None, *, to_the_second: bool = False) -> str:
    """A time in UTC, to the minute or to the second; empty if *iso* is empty.

    >>> time("2026-11-29T09:07:31+00:00"), time("2026-11-29T09:07:31Z", to_the_second=True), time(None)
    ('2026-11-29 09:07', '2026-11-29 09:07:31', '')
    """
    found = moment(iso)
    if found is None:
        return clean(iso or "")
    return f"{found:%Y-%m-%d %H:%M:%S}" if to_the_second else f"{found:%Y-%m-%d %H:%M}"


def until(start: str | None, end: str | None) -> str:
    """The end of a time span, without the day if the start is on the same day.

    >>> until("2026-11-29T09:07:31Z", "2026-11-29T10:00:00Z"), until("2026-11-29T09:07:31Z", "2026-11-30T10:00:00Z")
    ('10:00', '2026-11-30 10:00')
    """
    day, ended = time(start)[:11], time(end)
    return ended.removeprefix(day) if len(day) == 11 else ended


def chance(probability: float) -> str:
    """A small probability.

    >>> chance(0), chance(0.25), chance(3.4e-9), chance(1e-19)
    ('0', '1 in 4', '1 in 294 million', 'below 1 in a billion')
    """
    if probability <= 0:
        return "0"
    against = 1 / probability
    return "below 1 in a billion" if against > 1e9 else f"1 in {large_number(round(against))}"


def expected(value: float) -> str:
    """An expected number, which need not be whole.

    >>> expected(0), expected(0.00004), expected(0.25), expected(12.345)
    ('0', 'below 0.001', '0.25', '12.3')
    """
    return "below 0.001" if 0 < value < 0.001 else f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def harmless(text: str, most_chars: int = MOST_CHARS) -> str:
    r"""A text with at most *most_chars* characters, and U+FFFD for harmful characters.

    >>> harmless("a\tb" + chr(0xD800))
    'a�b�'
    """
    if len(text) > most_chars:
        text = f"{text[: most_chars - 1]}\u2026"
    return text if _PRINTABLE_ASCII.fullmatch(text) else _NEVER_STORED.sub("\ufffd", text)


def shown_url(url: str, most_chars: int = MOST_CHARS) -> str:
    """A URL that may be shown to others: without harmful characters, user name and password.

    >>> shown_url("https://me:secret@example.com/"), shown_url("https://example.com//@me")
    ('https://example.com/', 'https://example.com//@me')
    """
    # Remove the user before shortening: a password may be a token of thousands of characters.
    return harmless(without_user(url), most_chars)


def without_user(url: str) -> str:
    """A URL without a user name and password.

    >>> without_user("https://me:secret@example.com/?to=you@example.com")
    'https://example.com/?to=you@example.com'
    """
    return _USER.sub(r"\1", url) if "@" in url else url


def host_of(url: str) -> str:
    """The host of a URL, with its port if it has one, in lower case; ``(none)`` if there is none.

    >>> host_of("https://me@Example.com:8080/a"), host_of("data:,http://example.com/")
    ('example.com:8080', '(none)')
    """
    return host_and_rest(url)[0]


def host_and_rest(url: str) -> tuple[str, str]:
    """The host of a URL as returned by :func:`host_of`, and the rest after it; the rest is empty if there is no host.

    >>> host_and_rest("https://example.com/a?b")
    ('example.com', '/a?b')
    """
    # urlsplit() raises for some hosts and takes ten times as long.
    found = _AUTHORITY.match(url)
    if found is None:
        return "(none)", ""
    host = found[1].rpartition("@")[2].lower()
    # Values in parentheses are used by this module; no host starts with a parenthesis.
    is_host = host and not host.startswith("(")
    return harmless(host, MOST_HOST_CHARS) if is_host else "(none)", url[found.end() :]


def mime_of(content_type: str) -> str:
    """The MIME type of a Content-Type, in lower case and without parameters.

    >>> mime_of("Text/HTML; charset=utf-8"), mime_of(""), mime_of("<b>")
    ('text/html', '(none)', '(not a MIME type)')
    """
    mime = content_type[:200].partition(";")[0].strip().lower()
    if not mime:
        return "(none)"
    return mime if len(mime) <= 100 and _MIME_CHARS.fullmatch(mime) else "(not a MIME type)"


def key_of(url: str, shown: str) -> str:
    """A key that identifies a URL: its shown form, or a hash if other URLs may be shown the same way.

    Only both ends and the length of a very long URL are hashed.

    >>> key_of("https://example.com/", "https://example.com/")
    'https://example.com/'
    """
    if url == shown and not url.startswith("#"):
        return url
    ends = url if len(url) <= 20_000 else f"{url[:10_000]} {len(url)} {url[-10_000:]}"
    return f"#{blake2b(ends.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
