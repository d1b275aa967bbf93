"""Properties of Scrapy responses, and the responses that Scrapy would create for stored pages.

Texts of stored pages that are compared with texts of crawls must be decoded by this module, with the response classes
of the installed Scrapy: the detection of encodings differs between releases of Scrapy.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from scrapy import Request, Spider, version_info
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.http import Headers, HtmlResponse, Response, TextResponse, XmlResponse
from scrapy.responsetypes import responsetypes
from scrapy.settings import Settings
from scrapy.statscollectors import DummyStatsCollector

from scrapy_dedupe.content import Page
from scrapy_dedupe.content.canonical import kind_of, mime_of
from scrapy_dedupe.warc.capture import Capture, Rendering, has_body_by_definition
from scrapy_dedupe.warc.codings import (
    CONTENT_ENCODING,
    DecodedPage,
    codings_of,
    declared_encodings,
    is_charset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scrapy.settings import BaseSettings

KnownDigest: TypeAlias = "tuple[bytes, Callable[[], str]]"
"""A body, and the function that returns its SHA-256 in hex."""

SKIP_META_KEY: Final = "dedupe_skip"

# WARC-Truncated by flag. "partial" is not truncated: the connection close ends a body without Content-Length.
_TRUNCATED_BY: Final = {"dataloss": "disconnect", "download_stopped": "length"}
_FLAG_OF: Final = {truncated: flag for flag, truncated in _TRUNCATED_BY.items()}

# Flags of download handlers that return rendered pages. "rendered" is for handlers that are not in this list.
_BROWSER_FLAGS: Final = frozenset({"rendered", "playwright", "camoufox", "pyppeteer", "zyte-api"})
# scrapy-impersonate returns decoded bodies, and its requests differ from what curl sends.
_DECODER_FLAGS: Final = frozenset({"impersonate"})
_HTML_BEGINNINGS: Final = (b"<!doctype html", b"<html")
_SNIFFED_BYTES: Final = 512
_MOST_LENGTH_DIGITS: Final = 19


def max_bytes(crawler: Crawler, request: Request) -> int:
    """Return the maximum size of a response body in bytes, as received and decoded; 0 for no limit.

    The order of precedence is that of Scrapy's download handlers and HttpCompressionMiddleware: the meta of the
    request, the attribute of the spider (deprecated in newer versions of Scrapy, but still used), the setting.
    """
    limit = getattr(crawler.spider, "download_maxsize", crawler.settings.getint("DOWNLOAD_MAXSIZE"))
    return int(request.meta.get("download_maxsize", limit) or 0)


def truncation_of(response: Response) -> str | None:
    """Return the WARC-Truncated value of a truncated body, or None if no flag says that the body is truncated."""
    return next((_TRUNCATED_BY[flag] for flag in response.flags if flag in _TRUNCATED_BY), None)


def flag_of(truncated: str) -> str:
    """Return the Scrapy flag for a WARC-Truncated value."""
    return _FLAG_OF.get(truncated, "dataloss")


def capture_of(request: Request, response: Response) -> Capture:
    """Return the exchange as a copy that later changes of *request* and *response* do not affect.

    Values that Scrapy reports incorrectly are omitted: the IP address of a request through a proxy (Scrapy has the
    address of the proxy), and the Content-Length of a response without body (Twisted always sets 0).
    """
    has_address = response.ip_address is not None and not request.meta.get("proxy")
    headers = header_pairs(response.headers)
    if response.protocol != "h2" and not has_body_by_definition(request.method, response.status):
        headers = tuple([header for header in headers if header != (b"Content-Length", b"0")])
    capture = Capture(
        url=response.url,
        method=request.method,
        status=response.status,
        date=datetime.now(UTC),
        request_headers=header_pairs(request.headers),
        request_body=request.body,
        response_headers=headers,
        body=response.body,
        # The zone of an IPv6 address is only meaningful on this machine.
        ip_address=str(response.ip_address).partition("%")[0] if has_address else None,
        protocol=response.protocol,
        truncated=truncation_of(response),
    )
    rendering = rendering_of(response, capture)
    return capture if rendering is None else replace(capture, rendering=rendering)


def header_pairs(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    """Return a copy of the headers as pairs."""
    # dict.items() is faster than Headers.items(), which looks up each name again. The values are lists.
    return tuple([(name, value) for name, values in dict.items(headers) for value in values])


def rendering_of(response: Response, capture: Capture) -> Rendering | None:
    """Return why a response differs from what the server sent, or None if there is no sign of that.

    Call this on ``response_downloaded``, where the body still has its content coding. *capture* must hold the same
    response. Scrapy's own handlers set the protocol, and return bodies of the length given by Content-Length.
    """
    flag = next((flag for flag in response.flags if flag in _BROWSER_FLAGS or flag in _DECODER_FLAGS), None)
    length = _content_length(capture)
    if flag is not None:
        sign = f"flag {flag}"
    elif response.protocol is None and not response.headers:
        sign = "no HTTP headers"
    elif length not in (None, len(capture.body)) and not codings_of(capture.response_headers):
        sign = f"Content-Length {length}, but a body of {len(capture.body)} bytes"
    else:
        return None
    begins_as_html = capture.body[:_SNIFFED_BYTES].lstrip().lower().startswith(_HTML_BEGINNINGS)
    # Browsers wrap plain text, XML and images in an HTML page; other handlers return text resources unchanged.
    is_text = (capture.content_type or b"").lower().startswith(b"text/")
    return Rendering(sign, begins_as_html and (flag in _BROWSER_FLAGS or not is_text))


def _content_length(capture: Capture) -> int | None:
    """Return the Content-Length, or None if it is missing, ambiguous or not the length of the body as received."""
    if not capture.has_body_by_definition or capture.truncated is not None:
        return None
    values: set[bytes] = set()
    for name, value in capture.response_headers:
        lower = name.strip().lower()
        if lower == b"transfer-encoding":  # It overrides Content-Length (RFC 9112, section 6.3).
            return None
        if lower == b"content-length":
            values.update(part.strip() for part in value.split(b","))
    if not all(value.isdigit() and len(value) <= _MOST_LENGTH_DIGITS for value in values):
        return None
    lengths = set(map(int, values))
    return lengths.pop() if len(lengths) == 1 else None


def declared_type(response: Response) -> str | None:
    """Return the Content-Type of a response or, without that header, the type that Scrapy detected."""
    content_type = response.headers.get(b"Content-Type")
    if content_type is not None:
        return content_type.decode("latin-1")
    if isinstance(response, HtmlResponse):
        return "text/html"
    return "application/xml" if isinstance(response, XmlResponse) else None


def kind_of_page(response: Response) -> str | None:
    """Return the kind of a page, one of :data:`~scrapy_dedupe.content.canonical.KINDS`, or None if the page is not text."""
    content_type = declared_type(response)
    return None if content_type is None else kind_of(content_type)


def reason_to_skip(request: Request, response: Response, kind: str | None, max_bytes: int) -> str | None:
    """Return why the page is skipped, as one word, or None if the page is to be judged if it :func:`has_charset`."""
    if request.meta.get(SKIP_META_KEY):
        return "meta"
    if request.method == "HEAD":
        return "method"
    if response.status != 200:
        return "status"
    if kind is None or not isinstance(response, TextResponse):
        return "type"
    if is_coded(response):
        return "encoding"  # Scrapy could not decompress it.
    if truncation_of(response) is not None:
        return "truncated"
    return "size" if len(response.body) > max_bytes else None


def is_coded(response: Response) -> bool:
    """Return True if the body of a response still has a content coding."""
    values = response.headers.getlist(b"Content-Encoding")
    return bool(values) and bool(codings_of((CONTENT_ENCODING, value) for value in values))


def has_charset(response: TextResponse) -> bool:
    """Return False if the page declares an encoding that is not a charset for web pages: decoding it can take very long.

    If the page declares none, Scrapy decodes it to detect one, so do not call this on the event loop.
    """
    if is_charset(response.encoding):
        return True
    content_type = response.headers.get(b"Content-Type")
    declared = None if content_type is None else content_type.decode("latin-1")
    return next(declared_encodings(declared, response.body), None) is None


def utf8_of(response: TextResponse) -> bytes | None:
    """Return the body of a page if the text of the page has the same form in UTF-8, otherwise None."""
    body = response.body
    # A byte order mark is not part of the text, and invalid bytes become U+FFFD.
    is_same = response.encoding == "utf-8" and not body.startswith(BOM_UTF8) and "\ufffd" not in response.text
    return body if is_same else None


def body_digest(response: Response, digests: Mapping[Response, KnownDigest]) -> bytes:
    """Return the SHA-256 of the body. It is not computed again if *digests* has the same body."""
    body, digest = digests.get(response, (None, None))
    if digest is None or body is not response.body:
        return sha256(response.body).digest()
    return bytes.fromhex(digest())


class PageReader:
    """Decodes pages with the settings of a project."""

    def __init__(self, settings: BaseSettings) -> None:
        assert isinstance(settings, Settings)
        # The settings of a running crawl are frozen, and the new crawler must apply its spider's settings.
        own = settings.copy()
        own.frozen = False
        crawler = Crawler(type("NoSpider", (Spider,), {"name": "none"}), own)
        crawler.stats = DummyStatsCollector(crawler)
        self._decompression = HttpCompressionMiddleware(crawler=crawler)

    def page(
        self,
        url: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        crawl: str = "",
        seen_ms: int | None = None,
    ) -> Page | str:
        """Return the page, or the reason why it cannot be judged: ``type`` or ``encoding``."""
        # Scrapy before 2.14 requires the spider argument, but does not use it.
        spider = () if version_info >= (2, 14) else (None,)
        try:
            stored = new_response(url, headers, body)
            response = self._decompression.process_response(Request("data:,"), stored, *spider)
        except Exception:  # noqa: BLE001 - each decompressor raises its own exceptions
            return "encoding"
        assert isinstance(response, Response)
        if is_coded(response):
            return "encoding"
        page = _decoded_page(response)
        if isinstance(page, str):
            return page
        return Page(url, page.text, crawl, page.kind, mime_of(page.content_type), seen_ms)


def decoded_page(url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> DecodedPage | str:
    """Return the page, or the reason why it cannot be judged: ``type`` or ``encoding``.

    *body* must be without content codings.
    """
    kept = ((name, value) for name, value in headers if name.strip().lower() != CONTENT_ENCODING)
    return _decoded_page(new_response(url, kept, body))


def _decoded_page(response: Response) -> DecodedPage | str:
    # Treat a stored page as HTML if it has no Content-Type and Scrapy does not detect its type.
    content_type = declared_type(response) or "text/html"
    kind = kind_of(content_type)
    if kind is None or not isinstance(response, TextResponse):
        return "type"
    if not has_charset(response):
        return "encoding"
    try:
        return DecodedPage(response.text, response.encoding, kind, content_type)
    except (LookupError, UnicodeError):
        # Some declared charsets are names of Python codecs that do not decode to text.
        return "encoding"


def new_response(url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, **values: Any) -> Response:
    """Return a response of the class that Scrapy chooses for it; *values* are further arguments of the class."""
    all_headers = Headers()
    for name, value in headers:
        # Much faster than the methods of Headers.
        dict.setdefault(all_headers, _title(name), []).append(value)
    response_class = responsetypes.from_args(headers=all_headers, url=url, body=body)
    response: Response = response_class(url=url, body=body, **values)
    # The constructor would copy them.
    response.headers = all_headers
    return response


@lru_cache(1_024)
def _title(name: bytes) -> bytes:
    """A header name as Scrapy stores it."""
    return name.title()
