"""Access to Scrapy's engine: what it is processing, and two limits that it does not apply itself.

:class:`Throttle` pauses the engine while too many bytes wait to be written. Waiting exchanges are never discarded, so a
crawl that is faster than its disk must slow down.

:class:`PageLimits` makes dropped pages count for ``CLOSESPIDER_PAGECOUNT`` and ``CLOSESPIDER_PAGECOUNT_NO_ITEM``. Scrapy
counts only responses that reach the engine, which dropped pages do not. A crawl that drops every page would never reach
these limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

    from .events import Events, JudgedPage
    from .figures import Counters
    from .threads import EventLoop


def engine_of(crawler: Crawler) -> Any:
    """The engine of a crawler; None while there is none."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.18 on
        return None


def requests_in_hand(crawler: Crawler) -> set[Request] | None:
    """The requests that the engine or the scraper is processing; None if Scrapy does not expose them."""
    engine = engine_of(crawler)
    slot = getattr(getattr(engine, "scraper", None), "slot", None)
    active, queue = getattr(slot, "active", None), getattr(slot, "queue", None)
    if active is None or queue is None:
        return None
    in_progress = getattr(getattr(engine, "_slot", None), "inprogress", ())
    return {*active, *in_progress, *(item[1] for item in queue)}


class Throttle:
    """Pauses the engine when *waiting_bytes* exceeds *limit_bytes*; resumes it at half the limit."""

    def __init__(
        self,
        crawler: Crawler,
        limit_bytes: int,
        waiting_bytes: Callable[[], int],
        loop: EventLoop,
        counters: Counters,
    ) -> None:
        self._crawler = crawler
        self._limit = limit_bytes
        self._waiting_bytes = waiting_bytes
        self._loop = loop
        self._counters = counters
        self._is_throttling = False
        self._has_paused = False

    def limit_crossed(self) -> None:
        """Handle that the number of waiting bytes has exceeded the limit, or fallen to half of it. Thread-safe."""
        # Only on the event loop: two threads could pause and resume at the same time.
        self._loop.call(self._update)

    def _update(self) -> None:
        waiting = self._waiting_bytes()
        if not self._is_throttling and waiting > self._limit:
            self._is_throttling = True
            self._pause()
        elif self._is_throttling and waiting <= self._limit // 2:
            self._is_throttling = False
            self._resume()

    def _pause(self) -> None:
        engine = engine_of(self._crawler)
        if engine is not None and not engine.paused:
            engine.pause()
            self._has_paused = True
            self._counters.inc("dedupe/warc/held_back")

    def _resume(self) -> None:
        engine = engine_of(self._crawler)
        if engine is not None and self._has_paused:
            self._has_paused = False
            engine.unpause()
            # Otherwise, an idle engine would take up to five seconds to process the next request.
            nextcall = getattr(getattr(engine, "_slot", None), "nextcall", None)
            if nextcall is not None:
                nextcall.schedule()


class PageLimits:
    """Applies the two limits to one crawl, if one of them is set."""

    def __init__(self, crawler: Crawler, events: Events, close_spider: Callable[[str], None]) -> None:
        self._close_spider = close_spider
        self._limit = crawler.settings.getint("CLOSESPIDER_PAGECOUNT")
        self._limit_no_item = crawler.settings.getint("CLOSESPIDER_PAGECOUNT_NO_ITEM")
        self._pages = 0
        self._pages_since_item = 0
        self._has_dropped = False
        self._is_closing = False
        if self._limit or self._limit_no_item:
            crawler.signals.connect(self._page_received, signal=signals.response_received)
            crawler.signals.connect(self._item_scraped, signal=signals.item_scraped)
            events.listen(self._page_judged)

    def _page_judged(self, page: JudgedPage) -> None:
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
            self._close_spider("closespider_pagecount")
        elif self._limit_no_item and self._pages_since_item >= self._limit_no_item:
            self._is_closing = True
            self._close_spider("closespider_pagecount_no_item")
