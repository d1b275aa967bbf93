"""The rules by which a stored response may answer a new request (RFC 9111), as pure functions.

Scrapy's cache policies decide what is fresh, and what a server must confirm. They leave the rest to the storage, whose key
is only the fingerprint of the request. :func:`why_not_reused` has these rules: the header fields named by ``Vary``
(section 4.1), ``private`` (section 5.2.2.7), ``Authorization`` (section 3.5), and ``no-store`` in the stored request
(section 5.2.1.5). A response whose request is unknown is not reused if one of these fields matters.

:func:`judged_headers` gives the headers from which a policy can compute freshness. Scrapy computes the age from ``Date``
and ``Age`` only, reads only the last Cache-Control line, ignores a ``max-age`` that it cannot parse, and downloads a page
with ``no-cache`` again instead of asking whether the page has changed. So:

*   ``Age`` becomes the current age (section 4.2.3), with the time since the capture. If the clock is before the time of
    the capture, it becomes 2^31, the value for an age that is too great (section 1.2.2), so that the response is stale.
*   A missing or invalid ``Date`` becomes the time of the capture, and so does a ``Date`` after the capture if freshness
    can only be estimated from ``Last-Modified``.
*   All Cache-Control lines become one, with a ``max-age`` that Scrapy can parse: 0 if it is invalid. ``no-cache`` becomes
    ``max-age=0, must-revalidate``, which has the same meaning (section 5.2.2.4).
"""

from __future__ import annotations

import re
from datetime import UTC, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import TYPE_CHECKING

from scrapy_dedupe.warc.exchanges import cookie_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime

    from scrapy_dedupe.warc.capture import Headers

TOO_OLD_S = 2**31

_DIRECTIVE = re.compile(rb'\s*([^\s,="]+)(?:\s*=\s*("(?:[^"\\]|\\.)*"|[^,]*))?[^,]*', re.DOTALL)
# The fields of a 304 that replace those of the stored response and decide about its use.
_LASTING = (b"cache-control", b"etag", b"last-modified", b"vary")
_MAX_SKEW = timedelta(seconds=60)
_SECONDS = frozenset({b"max-age", b"s-maxage"})


def why_not_reused(
    stored: Headers,
    stored_request: Headers | None,
    request: Headers,
    *,
    ignored_controls: Collection[bytes] = (),
) -> str | None:
    """Why the response with the headers *stored* may not answer *request*, as one word; None if it may.

    *stored_request* are the headers of the request that it answered, None if they are unknown. Cache-Control directives
    of the response in *ignored_controls* are ignored.
    """
    known = stored_request or ()
    if _combined(known, b"authorization") != _combined(request, b"authorization"):
        return "authorization"
    if any(name == b"no-store" for name, _ in cache_controls(known)):
        return "no-store"
    controls = {name for name, _ in cache_controls(stored)} - set(ignored_controls)
    if b"private" in controls and (stored_request is None or not _have_same(known, request, b"cookie")):
        return "private"
    for name in _names(stored, b"vary"):
        # The Host belongs to the URL, which is the same.
        if name == b"host":
            continue
        if name == b"*" or stored_request is None or not _have_same(known, request, name):
            return "vary"
    return None


def judged_headers(
    stored: Headers, captured: datetime, now: datetime, *, ignored_controls: Collection[bytes] = ()
) -> Headers:
    """The headers of a stored response, captured at *captured*, for a policy that decides at *now*.

    Cache-Control directives in *ignored_controls* are kept as they are, since the policy ignores them.
    """
    controls = cache_controls(stored)
    date = _date(stored)
    has_lifetime = any(name == b"max-age" for name, _ in controls) or bool(_values(stored, b"expires"))
    shown = captured if date is None or (date > captured and not has_lifetime) else date
    headers = [
        (name, value) for name, value in stored if name.lower() not in (b"age", b"date", b"cache-control")
    ]
    headers.append((b"Date", format_datetime(shown.astimezone(UTC), usegmt=True).encode("ascii")))
    headers.append((b"Age", b"%d" % _age_s(stored, date, captured, now)))
    if any(name == b"no-cache" for name, _ in controls) and b"no-cache" not in ignored_controls:
        controls = [(name, value) for name, value in controls if name not in (b"no-cache", b"max-age")]
        controls += [(b"max-age", b"0"), (b"must-revalidate", None)]
    if controls:
        headers.append((b"Cache-Control", b", ".join(name + value for name, value in _readable(controls))))
    return tuple(headers)


def renewal(stored: Headers, confirmation: Headers, captured: datetime) -> str:
    """What a 304, captured at *captured* with the headers *confirmation*, means for a stored response (section 4.3.4).

    ``renewed``: the response is as fresh as if it was captured then. ``changed``: the 304 has other headers, which are not
    stored, so the response may not be used any more. ``kept``: the response may be used, but is not fresher.
    """
    for name in _LASTING:
        if _values(confirmation, name) and _combined(confirmation, name) != _combined(stored, name):
            return "changed"
    if not any(name == b"max-age" for name, _ in cache_controls(stored)):
        expires, earlier = _date(confirmation, b"expires"), _date(stored, b"expires")
        if _values(confirmation, b"expires") and _values(confirmation, b"expires") != _values(
            stored, b"expires"
        ):
            return "changed" if expires is None or earlier is None or expires < earlier else "kept"
    date = _date(confirmation)
    is_first_hand = date is None or abs(captured - date) < _MAX_SKEW
    return "renewed" if is_first_hand and _values(confirmation, b"age") in ([], [b"0"]) else "kept"


def cache_controls(headers: Headers) -> list[tuple[bytes, bytes | None]]:
    """The Cache-Control directives of all lines, with names in lower case; an argument keeps its quotes.

    >>> cache_controls(((b"Cache-Control", b"Private"), (b"Cache-Control", b'no-cache="a, b", max-age = 5')))
    [(b'private', None), (b'no-cache', b'"a, b"'), (b'max-age', b'5')]
    """
    lines = b",".join(_values(headers, b"cache-control"))
    return [
        (match[1].lower(), None if match[2] is None else match[2].strip())
        for match in _DIRECTIVE.finditer(lines)
    ]


def _readable(controls: list[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes]]:
    """The directives in a form that Scrapy parses correctly: no commas in arguments, and seconds in digits."""
    for name, argument in controls:
        if name in _SECONDS:
            digits = (argument or b"").strip(b'" ')
            yield name, b"=" + (digits if digits.isdigit() and len(digits) < 20 else b"0")
        elif argument is None or b"," in argument:
            # The directive for named fields becomes that for the whole response, which is stricter.
            yield name, b""
        else:
            yield name, b"=" + argument


def _age_s(stored: Headers, date: datetime | None, captured: datetime, now: datetime) -> int:
    """The current age in seconds, rounded up (RFC 9111, section 4.2.3)."""
    if now < captured:
        return TOO_OLD_S
    ages = [value.strip() for value in _values(stored, b"age")]
    sent = max((min(int(age[:20]), TOO_OLD_S) for age in ages if age.isdigit()), default=0)
    apparent = 0.0 if date is None else max(0.0, (captured - date).total_seconds())
    age = max(apparent, sent) + (now - captured).total_seconds()
    return min(TOO_OLD_S, -int(-age // 1))


def _date(headers: Headers, name: bytes = b"date") -> datetime | None:
    for value in _values(headers, name):
        try:
            date = parsedate_to_datetime(value.decode("ascii"))
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date
    return None


def _have_same(one: Headers, other: Headers, name: bytes) -> bool:
    if name == b"cookie":
        return cookie_key(_values(one, name)) == cookie_key(_values(other, name))
    return _combined(one, name) == _combined(other, name)


def _combined(headers: Headers, name: bytes) -> list[bytes]:
    """The value of a field in all its lines, without optional white space."""
    return [b" ".join(part.split()) for value in _values(headers, name) for part in value.split(b",")]


def _names(headers: Headers, name: bytes) -> Iterator[bytes]:
    """The field names in a header field, in lower case."""
    for value in _values(headers, name):
        yield from filter(None, (part.strip().lower() for part in value.split(b",")))


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for header, value in headers if header.lower() == name]
