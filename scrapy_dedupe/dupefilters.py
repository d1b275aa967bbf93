"""The dupefilter: asks each URL once.

A request is known by what ``crawler.request_fingerprinter`` makes of it. The answer comes from a growing
Bloom filter: one of this process, kept under ``JOBDIR``, or one in Redis that several processes share. An
error of ours lets the request through and is counted; :meth:`BloomDupeFilter.request_seen` never raises.

What differs from Scrapy's own filter: a redirect chain that comes back to a request of its own chain passes;
start requests are recorded, though not filtered, and the first redirect to a page that only a start request recorded
passes, as it does in Scrapy; after a kill only requests that were done, and whose pages brought nothing new, count as
seen; a request that failed may be asked for again in the next run.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from scrapy import signals, version_info
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.request import referer_str

from .errors import DedupeError
from .live.page_progress import PageProgress
from .live.session import Session
from .live.urls.local import LocalUrls
from .live.urls.shared import SharedUrls
from .urls.journal import MAX_FINGERPRINT_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred

logger = logging.getLogger(__name__)


class UrlFilter(Protocol):
    """What the dupefilter asks. ``keeps_done`` and ``keeps_failed``: whether it wants to be told of these."""

    keeps_done: bool
    keeps_failed: bool

    def prepare(self) -> None:
        """Do what has to be done before the scheduler opens its queue."""

    def open(self) -> None:
        """Begin. Raises :class:`~scrapy_dedupe.errors.DedupeError`."""

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if its request may be made."""

    def add_start(self, fingerprint: bytes) -> None:
        """Record the fingerprint of a request that is not filtered, and note that one redirect to it may pass."""

    def take_start(self, fingerprint: bytes) -> bool:
        """Whether :meth:`add_start` noted the fingerprint and no redirect to it has passed; it has passed then."""

    def __contains__(self, fingerprint: bytes) -> bool: ...

    def keep(self, done: list[bytes], failed: list[bytes]) -> None:
        """Take what was learnt since the last call; called every DEDUPE_URL_FLUSH_SECONDS."""

    async def close(self, done: list[bytes], failed: list[bytes], lost: int) -> None:
        """Take the rest and end the run: cleanly, unless ``lost`` requests go with the process."""

    def clear(self, *, at_start: bool) -> None:
        """Forget everything; before the spider opens, whatever other processes do."""

    @property
    def capacity(self) -> int:
        """Fingerprints of the first layer."""

    @property
    def has_grown(self) -> bool:
        """Whether there are more than the first layer holds, as far as is known without asking."""

    def figures(self) -> dict[str, float]:
        """Name and value of each stat."""

    def known_figures(self) -> dict[str, float]:
        """Name and value of the figures that are known without asking anybody; for any thread."""


class BloomDupeFilter(BaseDupeFilter):
    """``DUPEFILTER_CLASS``; see the module. Works under Scrapy's scheduler and under scrapy-redis's."""

    def __init__(self, crawler: Crawler, *, queue_is_shared: bool = False) -> None:
        self._crawler = crawler
        self._session = session = Session.of(crawler)
        self._settings = session.settings.urls
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        assert crawler.request_fingerprinter is not None
        self._make_fingerprint = crawler.request_fingerprinter.fingerprint
        fingerprinter = self._fingerprinter_path()
        self._urls: UrlFilter = (
            LocalUrls(session, fingerprinter)
            if self._settings.store_url is None
            else SharedUrls(session, fingerprinter, queue_is_shared=queue_is_shared)
        )
        self._latency, self._is_timed = session.live.latency("url"), session.live.is_watched
        self._pages = PageProgress(crawler)
        self._is_open = self._is_refused = self._is_closed = False
        self._told_drop = self._told_growth = self._has_begun = False
        connect = crawler.signals.connect
        connect(self._spider_opened, signal=signals.spider_opened)
        connect(self._spider_closed, signal=signals.spider_closed)
        connect(self._request_scheduled, signal=signals.request_scheduled)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BloomDupeFilter:
        self = cls(crawler)
        # The scheduler opens its queue before it opens the filter.
        self._session.at_start(self._urls.prepare)
        return self

    @classmethod
    def from_spider(cls, spider: Spider) -> BloomDupeFilter:
        """For scrapy-redis's scheduler, which calls neither open nor close."""
        self = cls(spider.crawler, queue_is_shared=True)
        self.open()
        if self._settings.store_url is None and self._session.is_crawl:
            logger.warning(
                "The queue of this crawl is shared through Redis, its URL filter is not: other processes may ask "
                "for the same pages. Set DEDUPE_URL_STORE_URL."
            )
        return self

    # What the scheduler calls

    def open(self) -> None:
        """Open or make the filter. An error is logged as a sentence, and the crawl does not start."""
        try:
            self._session.at_start(self._urls.open)
        except DedupeError as error:
            self._is_refused = True
            # Before 2.18 Scrapy did not take a CloseSpider here.
            if version_info >= (2, 18):
                raise CloseSpider("dedupe_url_filter") from error
            raise
        self._is_open = True
        self._session.live.url_figures = self._urls.known_figures
        self._session.at_refusal(self._end)
        connect = self._crawler.signals.connect
        if self._urls.keeps_done or self._urls.keeps_failed:
            connect(self._response_received, signal=signals.response_received)
        if self._urls.keeps_failed:
            connect(self._request_reached_downloader, signal=signals.request_reached_downloader)
            self._session.observers.add(self._pages)
        self._session.run_every(self._settings.flush_s, self._tick, "url")

    def request_seen(self, request: Request) -> bool:
        """Whether the request was made before; records it."""
        if not self._is_timed:
            return self._is_seen(request)
        start = time.perf_counter()
        is_seen = self._is_seen(request)
        self._latency.add(time.perf_counter() - start)
        return is_seen

    def _is_seen(self, request: Request) -> bool:
        try:
            fingerprint = self._fingerprint(request)
            urls = self._urls if self._is_open else self._opened()
            if urls.add(fingerprint):
                if urls.keeps_done:
                    self._pages.found(request)
                return False
            if self._pages.is_redirected(request) and self._may_return(request, fingerprint):
                self._session.counters.inc("dedupe/url/redirects_passed")
                return False
        except Exception as error:  # noqa: BLE001 - Scrapy would drop the request without a trace
            self._passed(error)
            return False
        if self._session.observers:
            self._session.observers.request_filtered(request.url)
        return True

    def log(self, request: Request, spider: Spider) -> None:
        """Count a request that was filtered, and log it as Scrapy does."""
        extra = {"spider": spider}
        if self._debug:
            logger.debug(
                "Filtered duplicate request: %(request)s (referer: %(referer)s)",
                {"request": request, "referer": referer_str(request)},
                extra=extra,
            )
        elif not self._told_drop:
            self._told_drop = True
            logger.debug(
                "Filtered duplicate request: %(request)s - no more duplicates will be shown (see"
                " DUPEFILTER_DEBUG to show all duplicates)",
                {"request": request},
                extra=extra,
            )
        self._session.counters.inc("dupefilter/filtered")

    def close(self, reason: str) -> Deferred[None] | None:
        """Save the filter. Does nothing when it was never opened, or is closed."""
        if not self._is_open or self._is_closed:
            return None
        return deferred_from_coro(self._close())

    def clear(self) -> None:
        """Forget everything, at the wish of scrapy-redis's scheduler.

        At the end of a crawl a shared filter goes with its last user, at the start (``SCHEDULER_FLUSH_ON_START``) it
        goes at once, as the queue does.
        """
        try:
            self._set_stats()
            self._urls.clear(at_start=not self._has_begun)
        except Exception as error:  # noqa: BLE001
            self._session.counters.error("url", error, "The URL filter was not cleared.")

    def _opened(self) -> UrlFilter:
        if not self._is_open:
            if self._is_refused:
                raise DedupeError("The URL filter could not be opened.")
            # A scheduler that does not call open() gets a filter all the same.
            self.open()
        return self._urls

    def _end(self) -> None:
        self._is_closed = True

    # Fingerprints

    def _fingerprint(self, request: Request) -> bytes:
        fingerprint = self._make_fingerprint(request)
        if not isinstance(fingerprint, bytes) or not 0 < len(fingerprint) <= MAX_FINGERPRINT_BYTES:
            shown = repr(fingerprint)
            raise DedupeError(
                f"{self._fingerprinter_path()} returned {shown[:80]} for {request}; a fingerprint is 1 to "
                f"{MAX_FINGERPRINT_BYTES} bytes."
            )
        return fingerprint

    def _fingerprinter_path(self) -> str:
        cls = type(self._crawler.request_fingerprinter)
        return f"{cls.__module__}.{cls.__qualname__}"

    def _fingerprints(self, request: Request) -> list[bytes]:
        """Fingerprints of a request and of those that were redirected to it."""
        chain = self._chain(request) if self._pages.is_redirected(request) else ()
        return [self._fingerprint(request), *chain]

    def _chain(self, request: Request) -> Iterable[bytes]:
        """Fingerprints of the requests that were redirected to this one."""
        for url in request.meta.get("redirect_urls", ()):
            yield self._fingerprint(request.replace(url=url))

    def _may_return(self, request: Request, fingerprint: bytes) -> bool:
        """Whether a redirect to what was seen passes. Scrapy itself ends chains that go on and on."""
        # A site that sets a cookie and sends the client back to the same URL.
        if any(earlier == fingerprint for earlier in self._chain(request)):
            return True
        # A login, a language choice or an age gate that ends at the start page, which has another text then. Only once:
        # some sites redirect every dead link to their home page.
        if not self._urls.take_start(fingerprint):
            return False
        if self._urls.keeps_done:
            self._pages.found(request)
        return True

    # Signals

    def _request_scheduled(self, request: Request) -> None:
        try:
            self._pages.scheduled(request)
            # The others come to request_seen().
            if not request.dont_filter:
                return
            if self._urls.keeps_done:
                self._pages.found(request)
            if self._is_to_be_recorded(request):
                self._opened().add_start(self._fingerprint(request))
        except Exception as error:  # noqa: BLE001
            self._passed(error)

    def _is_to_be_recorded(self, request: Request) -> bool:
        """Whether a request that is not filtered is one that links should not lead to again."""
        meta = request.meta
        if meta.get("is_start_request"):
            return self._settings.record_start
        if "retry_times" not in meta or not meta.get("redirect_urls"):
            return False
        # A retry is not filtered, and hands that on when it is redirected; what counts is what was retried.
        urls = self._opened()
        return next(iter(self._chain(request))) in urls and self._fingerprint(request) not in urls

    def _request_reached_downloader(self, request: Request) -> None:
        # What components fetch for themselves (robots.txt, media) was not asked for through this filter.
        if request.callback is not NO_CALLBACK:
            self._pages.sent(request)

    def _response_received(self, response: Response, request: Request) -> None:
        if request.callback is NO_CALLBACK:
            return
        try:
            is_good = self._pages.answered(response, request)
            # A middleware may answer with the response of another request; when that one is done, nobody knows.
            if not self._urls.keeps_done or not self._pages.is_in_progress(request):
                return
            known: list[bytes] = []
            # One that passes the filter by may be asked for a second time, and then find nothing new any more.
            if not request.dont_filter and (is_good or not self._urls.keeps_failed):
                known = [item for item in self._fingerprints(request) if item in self._urls]
            self._pages.received(response, request, known)
        except Exception as error:  # noqa: BLE001
            self._passed(error)

    def _spider_opened(self) -> None:
        self._has_begun = True

    def _spider_closed(self) -> Awaitable[None] | None:
        return self._close() if self._is_open else None

    def _passed(self, error: BaseException) -> None:
        self._session.counters.error("url", error, "Such requests pass, and are not recorded.")

    # Keeping

    def _tick(self) -> None:
        if not self._is_closed:
            if not self._told_growth and self._urls.has_grown:
                self._tell_growth()
            self._urls.keep(self._pages.tick() if self._urls.keeps_done else [], self._failed())

    def _failed(self) -> list[bytes]:
        """Fingerprints of the requests that failed since the last call, and of those that led to them."""
        if not self._urls.keeps_failed:
            return []
        failed: list[bytes] = []
        for request in self._pages.failed():
            try:
                # Others are not recorded, so there is nothing to forget.
                if not request.dont_filter or "retry_times" in request.meta:
                    failed += self._fingerprints(request)
                    self._session.counters.inc("dedupe/url/failed")
            except Exception as error:  # noqa: BLE001
                self._passed(error)
        return failed

    async def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._set_stats()
        except Exception as error:  # noqa: BLE001
            self._session.counters.error(
                "url", error, "The numbers of the URL filter are missing from the stats."
            )
        try:
            await self._urls.close(self._pages.all(), self._failed(), lost=self._pages.left_in_memory())
        except Exception as error:  # noqa: BLE001 - the rest of the crawl has to be closed all the same
            self._session.counters.error("url", error, "The URL filter was not saved as it should be.")

    def _set_stats(self) -> None:
        if not self._is_open:
            return
        figures = self._urls.figures()
        # After clear() there is nothing left; what was counted before it stays.
        if not figures.get("seen") and self._session.counters.all().get("dedupe/url/seen"):
            return
        for name, value in figures.items():
            self._session.counters.set(f"dedupe/url/{name}", value)
        if figures.get("layers", 0) > 1:
            self._tell_growth()

    def _tell_growth(self) -> None:
        if self._told_growth:
            return
        self._told_growth = True
        logger.warning(
            "The URL filter grew past its first capacity of %s fingerprints. It keeps its error rate, but takes "
            "more memory and time than one of the right size: set DEDUPE_URL_CAPACITY higher.",
            f"{self._urls.capacity:,}",
        )
