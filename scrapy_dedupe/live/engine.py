"""Access to Scrapy's engine: what it is processing, the progress of pages, and limits that it does not apply itself.

:class:`PageProgress` reads which pages are done, which requests failed, and in which page a request was found. The rules
are in :mod:`~scrapy_dedupe.urls.done`. If Scrapy does not expose some state, more pages count as not done, never fewer.

:class:`Throttle` pauses the engine while too many bytes wait to be written. Waiting exchanges are never discarded, so a
crawl that is faster than its disk must slow down.

:class:`PageLimits` makes dropped pages count towards ``CLOSESPIDER_PAGECOUNT`` and ``CLOSESPIDER_PAGECOUNT_NO_ITEM``. Scrapy
counts only responses that reach the engine, which dropped pages do not. A crawl that drops every page would never reach
these limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals, version_info
from scrapy.exceptions import IgnoreRequest
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.request import referer_str
from scrapy.utils.url import strip_url

from scrapy_dedupe.urls.done import DoneTracker, FailedTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .events import Events, JudgedPage
    from .figures import Counters
    from .threads import EventLoop


# Meta key of a redirected or retried request. Its value is the URL of the request, so that a request to another URL
# that inherits the meta is not mistaken for a redirect.
_CONTINUES = "_dedupe_continues"


def engine_of(crawler: Crawler) -> Any:
    """The engine of a crawler; None while there is none."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.18 on
        return None


def wake_engine(crawler: Crawler) -> None:
    """Let an idle engine process the next request, or end the crawl, now: otherwise it takes up to five seconds."""
    nextcall = getattr(_engine_slot(crawler), "nextcall", None)
    if nextcall is not None:
        nextcall.schedule()


def is_closing(crawler: Crawler) -> bool:
    """Whether the engine is closing the spider."""
    return getattr(_engine_slot(crawler), "closing", None) is not None


async def download(crawler: Crawler, request: Request) -> None:
    """Download a request. Its response passes the downloader middlewares, and is not passed to the spider."""
    engine = engine_of(crawler)
    if hasattr(engine, "download_async"):
        await engine.download_async(request)
    else:
        await maybe_deferred_to_future(engine.download(request))


def _engine_slot(crawler: Crawler) -> Any:
    return getattr(engine_of(crawler), "_slot", None)


def _scraper_slot(crawler: Crawler) -> Any:
    return getattr(getattr(engine_of(crawler), "scraper", None), "slot", None)


def requests_in_hand(crawler: Crawler) -> set[Request] | None:
    """The requests that the engine or the scraper is processing; None if Scrapy does not expose them."""
    slot = _scraper_slot(crawler)
    active, queue = getattr(slot, "active", None), getattr(slot, "queue", None)
    if active is None or queue is None:
        return None
    return {*active, *getattr(_engine_slot(crawler), "inprogress", ()), *(item[1] for item in queue)}


class PageProgress:
    """Tracks the pages of one crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._done: DoneTracker[Request] = DoneTracker()
        self._failed: FailedTracker[Request] = FailedTracker()

    def is_in_progress(self, request: Request) -> bool:
        """Whether the engine is processing the request."""
        return request in self._in_progress

    @staticmethod
    def is_redirected(request: Request) -> bool:
        """Whether the request replaced an earlier one, so that ``redirect_urls`` in its meta is its redirect chain.

        Otherwise ``redirect_urls`` may come from a callback that passed on the meta of its response.
        """
        return bool(request.meta.get(_CONTINUES) == request.url)

    def received(self, response: Response, request: Request, fingerprints: list[bytes]) -> None:
        """Note the response to a request in progress. ``fingerprints`` are reported when the request is done."""
        # Without fragment and credentials, as RefererMiddleware writes the Referer.
        url = strip_url(response.url)
        self._done.received(request, url, request.meta.get("depth", 0), fingerprints)

    def sent(self, request: Request) -> None:
        """Record that a request was passed to the downloader."""
        self._failed.sent(request)

    def answered(self, response: Response, request: Request) -> bool:
        """Record that a request got a response; False if the response goes to its errback."""
        is_good = not self._is_http_error(response)
        self._failed.ended(request, failed=not is_good)
        return is_good

    def page_judged(self, page: JudgedPage) -> None:
        """Record that a dropped page is done: its request gets no response."""
        if page.dropped:
            self._failed.ended(page.request)

    def scheduled(self, request: Request) -> None:
        """Record that a request is about to be enqueued. It may replace a request in progress."""
        meta = request.meta
        # The callback of a page that links to itself may have passed on this key.
        meta.pop(_CONTINUES, None)
        if not (request.dont_filter or "redirect_urls" in meta or "retry_times" in meta):
            return
        # A tracked request already has a response, so a request that names it comes from its callback.
        replaced = [
            other for other in self._in_progress if other not in self._done and _replaces(request, other)
        ]
        if replaced:
            meta[_CONTINUES] = request.url
            for other in replaced:
                self._failed.ended(other)

    def failed(self) -> list[Request]:
        """The requests that failed since the last call."""
        return self._failed.take(self._in_progress)

    def left_in_memory(self) -> int:
        """Number of a job's requests in memory, because Scrapy's scheduler could not write them to disk."""
        return len(getattr(getattr(_engine_slot(self._crawler), "scheduler", None), "mqs", None) or ())

    def found(self, request: Request) -> None:
        """Record that a scheduled request is new: the page in which it was found is not a leaf."""
        if self._is_start(request):
            return
        active = getattr(_scraper_slot(self._crawler), "active", None)
        url, depth, referer = strip_url(request.url), request.meta.get("depth"), referer_str(request)
        # A link that inherits the meta of a redirect looks like a redirect while the request named in that meta is in
        # progress. In both cases the page of the Referer is the right one: it has the link, or it has the link to
        # the first request of the redirect chain.
        self._done.found(url, depth, referer, active, is_redirected=self.is_redirected(request))

    def tick(self) -> list[bytes]:
        """Fingerprints of the leaves that are done since the last call."""
        busy = requests_in_hand(self._crawler)
        return [] if busy is None else self._done.tick(busy)

    def all(self) -> list[bytes]:
        """Fingerprints of all leaves that were not reported yet. Call this when no callback is running."""
        return self._done.all()

    def _is_http_error(self, response: Response) -> bool:
        """Whether Scrapy's HttpErrorMiddleware does not pass the response to the callback."""
        if 200 <= response.status < 300:
            return False
        middleware = self._crawler.get_spider_middleware(HttpErrorMiddleware)
        if middleware is None:
            return False
        try:
            if version_info < (2, 14):
                middleware.process_spider_input(response, self._crawler.spider)
            else:
                middleware.process_spider_input(response)
        except IgnoreRequest:
            return True
        return False

    @staticmethod
    def _is_start(request: Request) -> bool:
        # "is_start_request" is not enough: a callback may have copied the meta of its response.
        meta = request.meta
        return (
            bool(meta.get("is_start_request")) and not meta.get("depth") and "Referer" not in request.headers
        )

    @property
    def _in_progress(self) -> Collection[Request]:
        requests: Collection[Request] = getattr(_engine_slot(self._crawler), "inprogress", ())
        return requests


def _replaces(request: Request, other: Request) -> bool:
    """Whether ``request`` is a redirect or retry of ``other``, made by Scrapy's middlewares or similar ones.

    A callback that passes on the meta of its response also passes on ``redirect_urls`` and ``retry_times``. Its request
    has a greater depth, however, and ``redirect_urls`` is the redirect chain of the callback's own page.
    """
    meta, earlier = request.meta, other.meta
    if (meta.get("depth") or 0) != (earlier.get("depth") or 0):
        return False
    chain, earlier_chain = list(meta.get("redirect_urls", ())), list(earlier.get("redirect_urls", ()))
    if chain == [*earlier_chain, other.url]:
        return True
    is_retry = meta.get("retry_times", 0) == earlier.get("retry_times", 0) + 1
    return other.url == request.url and chain == earlier_chain and (is_retry or request.dont_filter)


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
            wake_engine(self._crawler)


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
            crawler.signals.connect(self._count, signal=signals.response_received)
            crawler.signals.connect(self._item_scraped, signal=signals.item_scraped)
            events.listen(self._page_judged)

    def _page_judged(self, page: JudgedPage) -> None:
        if page.dropped:
            self._has_dropped = True
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
