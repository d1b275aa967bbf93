"""Stored pages, decoded as a crawl decodes them: by the responses of the installed Scrapy.

Every text that is compared with the texts of crawls comes from `decoded_page`, which makes of a stored body the response
that a crawl makes of it. So both use the same detection of encodings, which differs between releases of Scrapy.
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
from scrapy_dedupe.warc.charsets import DecodedPage
from scrapy_dedupe.warc.codings import CONTENT_ENCODING

from .skip_reasons import declared_type, has_charset, is_coded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.settings import BaseSettings


class PageReader:
    """Reads pages under the settings of a project."""

    def __init__(self, settings: BaseSettings) -> None:
        assert isinstance(settings, Settings)
        # Those of a running crawl are frozen, and a crawler of one's own wants to apply its spider's to them.
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
        """The page, or the reason for which it is not judged: ``type`` or ``encoding``."""
        try:
            response = self._decoded(url, headers, body)
        except Exception:  # noqa: BLE001 - each decompressor has errors of its own
            return "encoding"
        if is_coded(response):
            return "encoding"
        page = _decoded_page(response)
        if isinstance(page, str):
            return page
        return Page(url, page.text, crawl, page.kind, mime_of(page.content_type), seen_ms)

    def _decoded(self, url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
        response = _response(url, headers, body)
        # Before Scrapy 2.14 the spider has to be given, which is not looked at.
        spider = () if version_info >= (2, 14) else (None,)
        decoded = self._decompression.process_response(Request("data:,"), response, *spider)
        assert isinstance(decoded, Response)
        return decoded


def decoded_page(url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> DecodedPage | str:
    """The page, or the reason why it is not read: ``type`` or ``encoding``. The content codings of *body* are undone."""
    kept = ((name, value) for name, value in headers if name.strip().lower() != CONTENT_ENCODING)
    return _decoded_page(_response(url, kept, body))


def _decoded_page(response: Response) -> DecodedPage | str:
    # A stored page without Content-Type is HTML if Scrapy does not recognise it.
    content_type = declared_type(response) or "text/html"
    kind = kind_of(content_type)
    if kind is None or not isinstance(response, TextResponse):
        return "type"
    if not has_charset(response):
        return "encoding"
    try:
        return DecodedPage(response.text, response.encoding, kind, content_type)
    except (LookupError, UnicodeError):
        # Some names of charsets are those of Python codecs which are none.
        return "encoding"


def _response(url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
    kept = Headers()
    for name, value in headers:
        kept.appendlist(name, value)
    cls = responsetypes.from_args(headers=kept, url=url, body=body)
    return cls(url=url, headers=kept, body=body)
