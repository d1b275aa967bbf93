"""What may be reused, and how old it is, compared with a plain model of RFC 9111."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.extensions import httpcache
from scrapy.http import Headers, Response
from scrapy.settings import Settings

from scrapy_dedupe.crawls.reuse import cache_controls, judged_headers, renewed_headers, why_not_reused

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
NAMES = st.sampled_from([b"Accept", b"Cookie", b"X-Kind", b"Authorization"])
VALUES = st.sampled_from([b"a", b"b", b"a, b", b"a,b", b"a=1; b=2", b"b=2; a=1"])
REQUESTS = st.dictionaries(NAMES, VALUES, max_size=3).map(lambda known: tuple(known.items()))


def spelled(name: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([name, name.lower(), name.upper()])


def value(headers: Any, name: bytes) -> Any:
    """The value as the model compares it: lists of words; cookies as a set."""
    found = [text for header, text in headers if header.lower() == name.lower()]
    if name == b"Cookie":
        return {part.strip() for text in found for part in text.split(b";")}
    return [part.strip() for text in found for part in text.split(b",")]


@given(
    vary=st.lists(NAMES.flatmap(spelled) | st.just(b"*"), max_size=2),
    is_joined=st.booleans(),
    control=st.sampled_from(
        [b"", b"private", b"max-age=5, Private", b'private="x"', b"public", b"privately"]
    ),
    known=st.none() | REQUESTS,
    request=REQUESTS,
    asks_not_to_store=st.booleans(),
)
def test_reuse_is_that_of_the_model(
    vary: list[bytes],
    is_joined: bool,
    control: bytes,
    known: Any,
    request: Any,
    asks_not_to_store: bool,
) -> None:
    lines = [b", ".join(vary)] if is_joined else vary
    stored = (*((b"Vary", line) for line in lines if line), (b"cache-control", control))
    asked = known
    if known is not None and asks_not_to_store:
        asked = (*known, (b"Cache-Control", b"max-age=0, no-store"))
    is_private = control.lower().replace(b'="x"', b"").endswith(b"private")
    compared = [b"Authorization", *(name.title() for name in vary if name != b"*"), *[b"Cookie"] * is_private]
    needs_request = len(compared) > 1
    allowed = (
        b"*" not in vary
        and not (known is None and needs_request)
        and not (known is not None and asks_not_to_store)
        and all(value(known or (), name) == value(request, name) for name in compared)
    )
    assert (why_not_reused(stored, asked, request) is None) == allowed


def test_an_ignored_directive_does_not_matter() -> None:
    stored = ((b"Cache-Control", b"private"),)
    assert why_not_reused(stored, (), ((b"Cookie", b"a"),)) == "private"
    assert why_not_reused(stored, (), ((b"Cookie", b"a"),), ignored_controls=[b"private"]) is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"", []),
        (b",, a ,", [(b"a", None)]),
        (b'a="b, c=d", E = 5', [(b"a", b'"b, c=d"'), (b"e", b"5")]),
        (b'a="b\\", c", d', [(b"a", b'"b\\", c"'), (b"d", None)]),
        (b'a="b, d', [(b"a", b'"b'), (b"d", None)]),
    ],
)
def test_cache_control(line: bytes, found: list[Any]) -> None:
    assert cache_controls(((b"Cache-Control", line),)) == found


@given(st.binary(max_size=40))
def test_reading_cache_control_never_raises(line: bytes) -> None:
    cache_controls(((b"Cache-Control", line),))


SECONDS = st.integers(-100_000, 100_000)
POLICY = httpcache.RFC2616Policy(Settings())


@given(
    captured_ago=SECONDS,
    date=st.none() | SECONDS,
    age=st.none() | st.integers(0, 50_000),
    max_age=st.none() | st.integers(0, 100_000),
    expires=st.none() | SECONDS,
    modified=st.none() | st.integers(0, 1_000_000),
    control=st.sampled_from([b"", b"no-cache", b"must-revalidate", b"public"]),
    wrong=st.sampled_from([None, b"max-age", b"max-age=x", b'max-age="0"', b"max-age = 0"]),
    asked=st.sampled_from([None, b"max-age=0", b"max-stale", b"max-age=50000"]),
)
def test_what_is_stale_for_the_model_is_never_fresh_for_the_policy(
    captured_ago: int,
    date: int | None,
    age: int | None,
    max_age: int | None,
    expires: int | None,
    modified: int | None,
    control: bytes,
    wrong: bytes | None,
    asked: bytes | None,
) -> None:
    """``date``, ``expires`` and ``modified`` are seconds before the capture, or after it if negative."""
    real_now = datetime.now(UTC).replace(microsecond=0)
    captured = real_now - timedelta(seconds=captured_ago)

    def text(seconds: int) -> bytes:
        return format_datetime(captured - timedelta(seconds=seconds), usegmt=True).encode()

    stored: list[tuple[bytes, bytes]] = []
    if date is not None:
        stored.append((b"Date", text(date)))
    if age is not None:
        stored.append((b"Age", b"%d" % age))
    if expires is not None:
        stored.append((b"Expires", text(expires)))
    if modified is not None:
        stored.append((b"Last-Modified", text(modified)))
    lines = [control, wrong or (b"" if max_age is None else b"max-age=%d" % max_age)]
    stored += [(b"Cache-Control", line) for line in lines if line]

    headers = Headers()
    for name, line in judged_headers(tuple(stored), captured, real_now):
        headers.appendlist(name, line)
    request = Request("https://example.com/", headers={} if asked is None else {"Cache-Control": asked})
    is_fresh = POLICY.is_cached_response_fresh(Response("https://example.com/", headers=headers), request)

    # RFC 9111, sections 4.2.1 and 4.2.3.
    current_age = max(date or 0, 0, age or 0) + captured_ago
    if wrong is not None:
        lifetime: float = 0
    elif max_age is not None:
        lifetime = max_age
    elif expires is not None:
        lifetime = (date or 0) - expires
    elif modified is not None:
        lifetime = max(0, modified - max(date or 0, 0)) / 10
    else:
        lifetime = 0
    if asked in (b"max-age=0", b"max-age=50000"):
        lifetime = min(lifetime, int(asked[8:]))
    may_be_stale = asked == b"max-stale" and control not in (b"no-cache", b"must-revalidate")
    is_allowed = captured_ago >= 0 and control != b"no-cache" and current_age < lifetime
    if is_fresh:
        assert is_allowed or may_be_stale
    elif captured_ago >= 0 and (is_allowed and current_age + 2 < lifetime):
        raise AssertionError("a fresh page would be requested again")
    if control == b"no-cache" and (modified is not None):
        assert request.headers[b"If-Modified-Since"] == text(modified), "the server can confirm it"


def test_the_headers_that_a_policy_gets() -> None:
    stored = (
        (b"Date", b"not a date"),
        (b"Cache-Control", b'no-cache="Set-Cookie, X", max-age=50'),
        (b"ETag", b'"a"'),
        (b"Cache-Control", b"stale-if-error=5"),
    )
    captured = NOW - timedelta(seconds=90.2)
    assert judged_headers(stored, captured, NOW) == (
        (b"ETag", b'"a"'),
        (b"Date", b"Sat, 28 Nov 2026 11:58:29 GMT"),
        (b"Age", b"91"),
        (b"Cache-Control", b"stale-if-error=5, max-age=0, must-revalidate"),
    )
    ignored = judged_headers(stored, captured, NOW, ignored_controls=[b"no-cache"])
    assert ignored[-1] == (b"Cache-Control", b"no-cache, max-age=50, stale-if-error=5")
    before = dict(
        judged_headers(((b"Date", b"Sat, 28 Nov 2026 13:00:00 GMT"),), NOW, NOW - timedelta(days=1))
    )
    assert before[b"Age"] == b"2147483648", "the clock is before the capture"


@pytest.mark.parametrize("field", [None, "", "{", "[]", "1", '{"date": 1}', '{"date": ["x"]}', "[" * 100_000])
def test_headers_of_a_304_that_cannot_be_read(field: str | None) -> None:
    assert renewed_headers((), field) is None
