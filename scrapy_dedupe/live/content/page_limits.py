"""Makes dropped pages count towards ``CLOSESPIDER_PAGECOUNT`` and ``CLOSESPIDER_PAGECOUNT_NO_ITEM``.

Scrapy counts only responses that reach the engine, which dropped pages do not. A crawl that drops every page would
never reach these limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import signals

from scrapy_dedupe.live.events import Observer

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_dedupe.live.events import JudgedPage
    from scrapy_dedupe.live.session import Session


class PageLimits(Observer):
    """Applies the two limits to one crawl, if one of them is set."""

    def __init__(self, crawler: Crawler, session: Session) -> None:
        self._session = session
        self._limit = crawler.settings.getint("CLOSESPIDER_PAGECOUNT")
        self._limit_no_item = crawler.settings.getint("CLOSESPIDER_PAGECOUNT_NO_ITEM")
        self._pages = 0
        self._pages_since_item = 0
        self._has_dropped = False
        self._is_closing = False
        if self._limit or self._limit_no_item:
            crawler.signals.connect(self._page_received, signal=signals.response_received)
            crawler.signals.connect(self._item_scraped, signal=signals.item_scraped)
            session.observers.add(self)

    def page_judged(self, page: JudgedPage) -> None:
        if page.dropped:
            self._has_dropped = True
            self._count()

    def _page_received(self) -> None:
        self._count()

    def _item_scraped(self) -> None:
        self._pages_since_item = 0

    def _count(self) -> None:
        self._pages += 1
        self._pages_since_item += 1
        if not self._has_dropped or self._is_closing:
            return  # Scrapy's CloseSpider extension counts every page that was not dropped.
        if self._limit and self._pages >= self._limit:
            self._is_closing = True
            self._session.close_spider("closespider_pagecount")
        elif self._limit_no_item and self._pages_since_item >= self._limit_no_item:
            self._is_closing = True
            self._session.close_spider("closespider_pagecount_no_item")
