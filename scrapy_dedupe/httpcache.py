"""The archive as the storage of Scrapy's HTTP cache.

::

    DEDUPE_HTTPCACHE = True

or, with a policy of your choice::

    HTTPCACHE_ENABLED = True
    HTTPCACHE_STORAGE = "scrapy_dedupe.httpcache.ArchiveCacheStorage"
    HTTPCACHE_POLICY = "scrapy.extensions.httpcache.RFC2616Policy"

A request is answered from the last capture of its URL: by this crawl, otherwise by a committed crawl. Nothing is stored
twice, since the item pipeline records each exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .live.archive.cache import ArchiveCache
from .live.session import Session

if TYPE_CHECKING:
    from typing import Self

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings

__all__ = ["ArchiveCacheMiddleware", "ArchiveCacheStorage"]


class ArchiveCacheStorage:
    """A storage for ``HTTPCACHE_STORAGE`` that reads the archive and stores nothing itself."""

    def __init__(self, settings: BaseSettings) -> None:
        self._cache: ArchiveCache | None = None

    def open_spider(self, spider: Spider) -> None:
        session = Session.of(spider.crawler)
        # Other commands, such as `scrapy shell`, use no store.
        if session.is_crawl:
            self._cache = ArchiveCache.of(session)

    def close_spider(self, spider: Spider) -> None:
        pass

    def retrieve_response(self, spider: Spider, request: Request) -> Response | None:
        return None if self._cache is None else self._cache.response_to(request)

    def store_response(self, spider: Spider, request: Request, response: Response) -> None:
        pass


class ArchiveCacheMiddleware:
    """Looks requests up for :class:`ArchiveCacheStorage` without blocking the crawl.

    A downloader middleware for order 899, directly before HttpCacheMiddleware (900). The add-on enables it if
    ``HTTPCACHE_STORAGE`` is :class:`ArchiveCacheStorage`. Raises :class:`~scrapy_dedupe.errors.StoreError` at startup if
    the store of the index is unusable.
    """

    def __init__(self, crawler: Crawler) -> None:
        session = Session.of(crawler)
        self._cache = ArchiveCache.of(session) if session.is_crawl else None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_request(self, request: Request, spider: Spider | None = None) -> None:
        if self._cache is not None:
            await self._cache.look_up(request)

    def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Request | Response:
        return response if self._cache is None else self._cache.response_used(request, response)
