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

A 304 renews a page: its ``Date``, ``Cache-Control``, ``ETag`` and so on replace those of the page (section 4.3.4), except
:data:`OF_THE_BODY`, which describe a body that the 304 does not have (section 3.2). Its record has no block, which a replay program would show as an empty page, so :func:`renewal` keeps the result in a field of
the record.
"""

from __future__ import annotations

import json
import re
from datetime import UTC
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.warc.exchanges import cookie_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from scrapy_dedupe.warc.capture import Headers

TOO_OLD_S = 2**31

RENEWAL_FIELD = "Dedupe-Renewed-Headers"
"""The field of a server-not-modified record that has the headers of its page: an object in JSON, in ASCII.

Its keys are names of header fields in lower case, its values lists of the values of each. They replace those in the head of
the original. Always included are the fields that decide how the page may be reused; an empty list means that the page
has none.
"""

OF_THE_BODY = (
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"transfer-encoding",
)
"""The fields that a 304 does not renew."""

_DIRECTIVE = re.compile(rb'\s*([^\s,="]+)(?:\s*=\s*("(?:[^"\\]|\\.)*"|[^,]*))?[^,]*', re.DOTALL)
_DECISIVE = (b"age", b"cache-control", b"date", b"etag", b"expires", b"last-modified", b"vary")
_CONTROLS = frozenset({b"cache-control"})
_OF_PAGES = frozenset({b"cache-control", b"vary"})
_OF_REQUESTS = frozenset({b"authorization", b"cache-control"})
_REPLACED = frozenset({b"age", b"cache-control", b"date"})
_JUDGED = _REPLACED | {b"expires"}
_OF_THE_TRANSFER = {b"connection", b"content-length", b"keep-alive", b"transfer-encoding"}
_MOST_CHARS = 8_000
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
    asked, asking = _fields(stored_request or (), _OF_REQUESTS), _fields(request, _OF_REQUESTS)
    if _combined(asked, b"authorization") != _combined(asking, b"authorization"):
        return "authorization"
    if any(name == b"no-store" for name, _ in _controls(asked)):
        return "no-store"
    page = _fields(stored, _OF_PAGES)
    if not page:
        return None
    controls = {name for name, _ in _controls(page)} - set(ignored_controls)
    if b"private" in controls and (
        stored_request is None or not _have_same(stored_request, request, b"cookie")
    ):
        return "private"
    for name in _names(page.get(b"vary", ())):
        # The Host belongs to the URL, which is the same.
        if name == b"host":
            continue
        if name == b"*" or stored_request is None or not _have_same(stored_request, request, name):
            return "vary"
    return None


def judged_headers(
    stored: Headers, captured: datetime, now: datetime, *, ignored_controls: Collection[bytes] = ()
) -> Headers:
    """The headers of a stored response, captured at *captured*, for a policy that decides at *now*.

    Cache-Control directives in *ignored_controls* are kept as they are, since the policy ignores them.
    """
    fields = _fields(stored, _JUDGED)
    controls = _controls(fields)
    date = _read_date(fields[b"date"][0]) if b"date" in fields else None
    has_lifetime = any(name == b"max-age" for name, _ in controls) or b"expires" in fields
    shown = captured if date is None or (date > captured and not has_lifetime) else date
    headers = [field for field in stored if field[0].lower() not in _REPLACED]
    headers.append((b"Date", _date_text(shown)))
    headers.append((b"Age", b"%d" % _age_s(fields.get(b"age", ()), date, captured, now)))
    if any(name == b"no-cache" for name, _ in controls) and b"no-cache" not in ignored_controls:
        controls = [(name, value) for name, value in controls if name not in (b"no-cache", b"max-age")]
        controls += [(b"max-age", b"0"), (b"must-revalidate", None)]
    if controls:
        headers.append((b"Cache-Control", b", ".join(name + value for name, value in _readable(controls))))
    return tuple(headers)


class Renewal(NamedTuple):
    """What a 304 changes in the head of an original: ``headers``, and their text in :data:`RENEWAL_FIELD`."""

    headers: Headers
    field: str


def renewal(stored: Headers, confirmation: Headers, original: Headers) -> Renewal | None:
    """The effect of a 304 with the headers *confirmation* (section 4.3.4).

    *stored* are the headers of the confirmed page, *original* those of the record that the 304 will refer to. None if the
    page cannot be described by that record.
    """
    confirmed = _fields(confirmation, _DECISIVE)
    fields: dict[bytes, list[bytes]] = {}
    if stored is original:
        of_page = _fields(stored, _DECISIVE)
    else:
        of_page, of_original = _fields(stored), _fields(original)
        if of_page.get(b"content-encoding") != of_original.get(b"content-encoding"):
            return None
        names = (of_page.keys() | of_original.keys()) - _OF_THE_TRANSFER
        fields = {name: of_page.get(name, []) for name in names if of_page.get(name) != of_original.get(name)}
    for name in _DECISIVE:
        # The age of the page is that of the 304.
        kept = [] if name in (b"age", b"date") else of_page.get(name, [])
        fields[name] = confirmed.get(name, kept)
    decoded = {
        name.decode("latin-1"): [value.decode("latin-1") for value in fields[name]] for name in sorted(fields)
    }
    text = json.dumps(decoded)
    return Renewal(_headers_of(decoded), text) if len(text) <= _MOST_CHARS else None


def renewed_headers(original: Headers, field: str | None) -> Headers | None:
    """The headers of a page after a 304, from those of its *original* and a :func:`renewal`.

    None without a valid one.
    """
    try:
        fields = json.loads(field or "")
        added = _headers_of(fields)
        replaced = {name.encode("latin-1") for name in fields}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not replaced.issuperset(_DECISIVE):
        return None
    return (*((name, value) for name, value in original if name.lower() not in replaced), *added)


def _headers_of(fields: Mapping[str, list[str]]) -> Headers:
    return tuple(
        [
            (name.title().encode("latin-1"), value.encode("latin-1"))
            for name, values in fields.items()
            for value in values
        ]
    )


def cache_controls(headers: Headers) -> list[tuple[bytes, bytes | None]]:
    """The Cache-Control directives of all lines, with names in lower case; an argument keeps its quotes.

    >>> cache_controls(((b"Cache-Control", b"Private"), (b"Cache-Control", b'no-cache="a, b", max-age = 5')))
    [(b'private', None), (b'no-cache', b'"a, b"'), (b'max-age', b'5')]
    """
    return _controls(_fields(headers, _CONTROLS))


def _controls(fields: Mapping[bytes, list[bytes]]) -> list[tuple[bytes, bytes | None]]:
    if b"cache-control" not in fields:
        return []
    lines = b",".join(fields[b"cache-control"])
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


def _age_s(values: Iterable[bytes], date: datetime | None, captured: datetime, now: datetime) -> int:
    """The current age in seconds, rounded up (RFC 9111, section 4.2.3)."""
    if now < captured:
        return TOO_OLD_S
    ages = [value.strip() for value in values]
    sent = max((min(int(age[:20]), TOO_OLD_S) for age in ages if age.isdigit()), default=0)
    apparent = 0.0 if date is None else max(0.0, (captured - date).total_seconds())
    age = max(apparent, sent) + (now - captured).total_seconds()
    return min(TOO_OLD_S, -int(-age // 1))


# A site sends many pages in the same second.
@lru_cache(256)
def _read_date(value: bytes) -> datetime | None:
    try:
        date = parsedate_to_datetime(value.decode("ascii"))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date


@lru_cache(256)
def _date_text(date: datetime) -> bytes:
    return format_datetime(date.astimezone(UTC), usegmt=True).encode("ascii")


def _have_same(one: Headers, other: Headers, name: bytes) -> bool:
    fields, others = _fields(one, (name,)), _fields(other, (name,))
    if name == b"cookie":
        return cookie_key(fields.get(name, [])) == cookie_key(others.get(name, []))
    return _combined(fields, name) == _combined(others, name)


def _combined(fields: Mapping[bytes, list[bytes]], name: bytes) -> list[bytes]:
    """The value of a field in all its lines, without optional white space."""
    return [b" ".join(part.split()) for value in fields.get(name, ()) for part in value.split(b",")]


def _names(values: Iterable[bytes]) -> Iterator[bytes]:
    """The field names in the values of a header field, in lower case."""
    for value in values:
        yield from filter(None, (part.strip().lower() for part in value.split(b",")))


def _fields(headers: Headers, names: Collection[bytes] | None = None) -> dict[bytes, list[bytes]]:
    """The values of each header field, or of those in *names*, by its name in lower case."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        lower = name.lower()
        if names is None or lower in names:
            found.setdefault(lower, []).append(value)
    return found
