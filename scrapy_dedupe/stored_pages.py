"""A stored page as the content layer reads it: decoded as Scrapy decodes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request, Spider, version_info
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.http import Headers, Response, TextResponse
from scrapy.responsetypes import responsetypes
from scrapy.settings import Settings
from scrapy.statscollectors import DummyStatsCollector

from .content import Page
from .content.canonical import kind_of
from .content.content_type import mime_of
from .page_reasons import has_charset

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
        coding = response.headers.get(b"Content-Encoding")
        if coding is not None and coding.lower() != b"identity":
            return "encoding"
        content_type = response.headers.get(b"Content-Type")
        declared = "text/html" if content_type is None else content_type.decode("latin-1")
        kind = kind_of(declared)
        if kind is None or not isinstance(response, TextResponse):
            return "type"
        if not has_charset(response):
            return "encoding"
        try:
            text = response.text
        except (LookupError, UnicodeError):
            # Some names of charsets are those of Python codecs which are none.
            return "encoding"
        return Page(url, text, crawl, kind, mime_of(declared), seen_ms)

    def _decoded(self, url: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
        values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            values.setdefault(name.lower(), []).append(value)
        kept = Headers(values)
        cls = responsetypes.from_args(headers=kept, url=url, body=body)
        response = cls(url=url, headers=kept, body=body)
        # Before Scrapy 2.14 the spider has to be given, which is not looked at.
        spider = () if version_info >= (2, 14) else (None,)
        decoded = self._decompression.process_response(Request("data:,"), response, *spider)
        assert isinstance(decoded, Response)
        return decoded
