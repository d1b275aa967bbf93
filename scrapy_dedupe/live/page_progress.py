"""What Scrapy shows of its pages while it works on them: which are done, which failed, and which page brought which.

The rules are those of :mod:`~scrapy_dedupe.urls.done` and :mod:`~scrapy_dedupe.urls.failed`; here is how a
request, its parent and the state of the engine are read. Where Scrapy does not show something, more pages count as
not done, never fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import version_info
from scrapy.exceptions import IgnoreRequest
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware
from scrapy.utils.request import referer_str
from scrapy.utils.url import strip_url

from scrapy_dedupe.urls.done import DoneWatch
from scrapy_dedupe.urls.failed import FailedWatch

from .events import Observer

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .events import JudgedPage

# In the meta of a request that was redirected or retried: its URL, which it loses when its meta is handed on.
_CONTINUES = "_dedupe_continues"


def engine_of(crawler: Crawler) -> Any:
    """The engine of a crawler; None while there is none."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.18 on
        return None


def requests_in_hand(crawler: Crawler) -> set[Request] | None:
    """The requests that the engine or the scraper holds; None where Scrapy does not show them."""
    engine = engine_of(crawler)
    slot = getattr(getattr(engine, "scraper", None), "slot", None)
    active, queue = getattr(slot, "active", None), getattr(slot, "queue", None)
    if active is None or queue is None:
        return None
    in_progress = getattr(getattr(engine, "_slot", None), "inprogress", ())
    return {*active, *in_progress, *(item[1] for item in queue)}


class PageProgress(Observer):
    """The pages of one crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._watch: DoneWatch[Request] = DoneWatch()
        self._sent: FailedWatch[Request] = FailedWatch()

    def is_in_progress(self, request: Request) -> bool:
        """Whether the engine has taken the request from the scheduler and not finished it."""
        return request in self._in_progress

    @staticmethod
    def is_redirected(request: Request) -> bool:
        """Whether the request took the place of an earlier one, so that ``redirect_urls`` in its meta are the way to it.

        Otherwise a callback may have handed on the meta of its response.
        """
        return bool(request.meta.get(_CONTINUES) == request.url)

    def received(self, response: Response, request: Request, fingerprints: list[bytes]) -> None:
        """A request that is in progress was answered; ``fingerprints`` tell that it is done."""
        # Without fragment and credentials, as RefererMiddleware writes it.
        url = strip_url(response.url)
        self._watch.received(request, url, request.meta.get("depth", 0), fingerprints)

    def sent(self, request: Request) -> None:
        """A request was handed to the downloader."""
        self._sent.sent(request)

    def answered(self, response: Response, request: Request) -> bool:
        """A request was answered; False if the answer goes to its errback."""
        is_good = not self._is_http_error(response)
        self._sent.ended(request, failed=not is_good)
        return is_good

    def page_judged(self, page: JudgedPage) -> None:
        if page.dropped and page.request is not None:
            self._sent.ended(page.request)

    def scheduled(self, request: Request) -> None:
        """A request is about to be enqueued; it may take the place of one that is in progress."""
        meta = request.meta
        # A page that links to itself may hand this on too.
        meta.pop(_CONTINUES, None)
        if not (request.dont_filter or "redirect_urls" in meta or "retry_times" in meta):
            return
        # One that is watched was answered, so a request that names it comes from its callback.
        replaced = [
            other
            for other in self._in_progress
            if other not in self._watch and _takes_the_place_of(request, other)
        ]
        if replaced:
            meta[_CONTINUES] = request.url
            for other in replaced:
                self._sent.ended(other)

    def failed(self) -> list[Request]:
        """The requests that failed since the last call."""
        return self._sent.take(self._in_progress)

    def left_in_memory(self) -> int:
        """How many requests of a job Scrapy's scheduler holds in memory, since it could not write them to the disk."""
        slot = getattr(engine_of(self._crawler), "_slot", None)
        return len(getattr(getattr(slot, "scheduler", None), "mqs", None) or ())

    def found(self, request: Request) -> None:
        """A request that was scheduled is new: the page in which it was found is no leaf."""
        if self._is_start(request):
            return
        active = getattr(self._scraper_slot, "active", None)
        url, depth, referer = strip_url(request.url), request.meta.get("depth"), referer_str(request)
        # A link that carries the meta of a redirect looks like one while the request that it names is in progress beside
        # it. The page of its Referer found it then; that of a true redirect found the first request, and is none the less.
        self._watch.found(url, depth, referer, active, is_redirected=self.is_redirected(request))

    def tick(self) -> list[bytes]:
        """Fingerprints of the leaves that are done since the last look."""
        busy = requests_in_hand(self._crawler)
        return [] if busy is None else self._watch.tick(busy)

    def all(self) -> list[bytes]:
        """Fingerprints of every leaf that is left, at a time when no callback runs."""
        return self._watch.all()

    def _is_http_error(self, response: Response) -> bool:
        """Whether Scrapy's middleware keeps the response from the callback."""
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
        # A callback may have copied the meta of its response.
        meta = request.meta
        return (
            bool(meta.get("is_start_request")) and not meta.get("depth") and "Referer" not in request.headers
        )

    @property
    def _scraper_slot(self) -> Any:
        return getattr(getattr(engine_of(self._crawler), "scraper", None), "slot", None)

    @property
    def _in_progress(self) -> Collection[Request]:
        requests: Collection[Request] = getattr(
            getattr(engine_of(self._crawler), "_slot", None), "inprogress", ()
        )
        return requests


def _takes_the_place_of(request: Request, other: Request) -> bool:
    """Whether Scrapy's middlewares made ``request`` out of ``other``, or one like them did.

    A callback that hands on the meta of its response hands on ``redirect_urls`` and ``retry_times`` too, but one level
    deeper, and the way in them is that of its own page.
    """
    meta, earlier = request.meta, other.meta
    if (meta.get("depth") or 0) != (earlier.get("depth") or 0):
        return False
    way, way_before = list(meta.get("redirect_urls", ())), list(earlier.get("redirect_urls", ()))
    if way == [*way_before, other.url]:
        return True
    is_retry = meta.get("retry_times", 0) == earlier.get("retry_times", 0) + 1
    return other.url == request.url and way == way_before and (is_retry or request.dont_filter)
