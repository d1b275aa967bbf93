"""Decodes stored pages exactly as a crawl does, with the response classes of the installed Scrapy.

Texts of stored pages that are compared with texts of crawls must be decoded by this module: the detection of encodings
differs between releases of Scrapy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request, Spider, version_info
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.http import Headers, Response, TextResponse
from scrapy.responsetypes import responsetypes
from scrapy.settings import Settings
from scrapy.statscollectors import DummyStatsCollector

from scrapy_dedupe.content import Page
from scrapy_dedupe.content.canonical import kind_of
from scrapy_dedupe.content.content_type import mime_of
from scrapy_dedupe.warc.codings import CONTENT_ENCODING, DecodedPage

from .skip_reasons import declared_type, has_charset, is_coded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.settings import BaseSettings


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
        try:
            response = self._decoded(url, headers, body)
        except Exception:  # noqa: BLE001 - each decompressor raises its own exceptions
            return "encoding"
        if is_coded(response):
            return "encoding"
        page = _decoded_page(response)
        if isinstance(page, str):
            return page
        return Page(url, page.text, crawl, page.kind, mime_of(page.content_type), seen_ms)

    def _decoded(self, url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
        response = _response(url, headers, body)
        # Scrapy before 2.14 requires the spider argument, but does not use it.
        spider = () if version_info >= (2, 14) else (None,)
        decoded = self._decompression.process_response(Request("data:,"), response, *spider)
        assert isinstance(decoded, Response)
        return decoded


def decoded_page(url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> DecodedPage | str:
    """Return the page, or the reason why it cannot be judged: ``type`` or ``encoding``.

    *body* must be without content codings.
    """
    kept = ((name, value) for name, value in headers if name.strip().lower() != CONTENT_ENCODING)
    return _decoded_page(_response(url, kept, body))


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


def _response(url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
    kept = Headers()
    for name, value in headers:
        kept.appendlist(name, value)
    cls = responsetypes.from_args(headers=kept, url=url, body=body)
    return cls(url=url, headers=kept, body=body)
