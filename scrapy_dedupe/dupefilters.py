"""The dupefilter: requests each URL once.

Requests are identified by the fingerprint from ``crawler.request_fingerprinter``. The fingerprints are in a growing
Bloom filter: one of this process, stored in ``JOBDIR``, or one in Redis that several processes share. If an error
occurs in this package, the request passes and the error is counted; :meth:`BloomDupeFilter.request_seen` never raises.

Differences from Scrapy's own filter:

*   A redirect to a URL of its own redirect chain passes.
*   Start requests are recorded, though not filtered. The first redirect to a page that only a start request recorded
    passes, as it does in Scrapy.
*   After a kill only done requests whose pages had no new links count as seen.
*   A failed request may be made again in the next run.
*   With URL rules, of the URLs that lead to the same page only one is requested (:mod:`.live.urls.rules`).
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

from .errors import DedupeError, SettingError
from .live.engine import PageProgress
from .live.session import Session
from .live.urls.fingerprints import Fingerprints
from .live.urls.local import LocalUrls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred

    from .live.urls.rules import AppliedRules

logger = logging.getLogger(__name__)


class UrlFilter(Protocol):
    """The interface of the URL filters.

    ``keeps_done`` and ``keeps_failed``: whether the filter stores done and failed requests.
    """

    keeps_done: bool
    keeps_failed: bool

    def prepare(self) -> None:
        """Prepare the job's folder before the scheduler opens its queue."""

    def open(self) -> None:
        """Open the filter. Raises :class:`~scrapy_dedupe.errors.DedupeError`."""

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if its request may be made."""

    def add_all_unless(self, known: bytes, fingerprints: list[bytes]) -> bool:
        """Record fingerprints, unless *known* or the first of them was recorded; True if they are recorded now."""

    def add_start(self, fingerprint: bytes) -> None:
        """Record the fingerprint of a request that is not filtered, and allow one redirect to it."""

    def take_start(self, fingerprint: bytes) -> bool:
        """Use up the redirect that :meth:`add_start` allowed; True if it was not used before."""

    def __contains__(self, fingerprint: bytes) -> bool: ...

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """For each fingerprint, whether it was recorded."""

    def keep(self, done: list[bytes], failed: list[bytes]) -> None:
        """Store the fingerprints of requests that are done or failed since the last call.

        Called every DEDUPE_URL_FLUSH_SECONDS.
        """

    async def close(self, done: list[bytes], failed: list[bytes], lost: int) -> None:
        """Store the last fingerprints and end the run. With ``lost`` requests the run counts as unclean."""

    def clear(self, *, at_start: bool) -> None:
        """Remove all fingerprints; with ``at_start`` also those of other processes."""

    @property
    def has_fingerprints(self) -> bool:
        """Whether the filter has fingerprints, or may get some from other processes."""

    @property
    def layers(self) -> int:
        """Number of layers, as far as is known without a call to a store."""

    def figures(self) -> dict[str, float]:
        """Name and value of each stat."""

    def known_figures(self) -> dict[str, float]:
        """Name and value of the figures that are known without a call to a store. Thread-safe."""


class BloomDupeFilter(BaseDupeFilter):
    """The class for ``DUPEFILTER_CLASS``. Works with the schedulers of Scrapy and scrapy-redis."""

    def __init__(self, crawler: Crawler, *, queue_is_shared: bool = False) -> None:
        self._crawler = crawler
        self._session = session = Session.of(crawler)
        self._settings = session.settings.urls
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._fingerprints = Fingerprints(crawler)
        self._fingerprint = self._fingerprints.of
        self._urls: UrlFilter
        if self._settings.store_url is None:
            self._urls = LocalUrls(session, self._fingerprints.path)
        else:
            from .live.urls.shared import SharedUrls  # imports redis

            self._urls = SharedUrls(session, self._fingerprints.path, queue_is_shared=queue_is_shared)
        self._rules: AppliedRules | None = None
        if self._settings.rules is not None:
            session.at_start(lambda: self._use_rules(queue_is_shared))
        self._latency, self._is_timed = session.live.latency("url"), session.live.is_watched
        self._pages = PageProgress(crawler)
        self._is_open = self._is_refused = self._is_closed = False
        self._has_logged_duplicate = self._has_logged_growth = self._is_spider_open = False
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
        """Used by scrapy-redis's scheduler, which does not call :meth:`open` and :meth:`close`."""
        self = cls(spider.crawler, queue_is_shared=True)
        self.open()
        if self._is_refused:
            # Otherwise the scheduler might clear a queue that other processes use.
            raise CloseSpider("dedupe_url_filter")
        if self._settings.store_url is None and self._session.is_crawl:
            logger.warning(
                "The queue of this crawl is shared in Redis, but its URL filter is not: other processes may request "
                "the same pages. Set DEDUPE_URL_STORE_URL."
            )
        return self

    # Called by the scheduler

    def open(self) -> None:
        """Open or create the filter. An error is logged without a traceback, and the crawl does not start."""
        try:
            self._session.at_start(self._open_urls)
        except DedupeError:
            self._is_refused = True
            # Scrapy 2.18 and later close the spider if spider_opened requests it. If this method did, Scrapy would fail to
            # close the scraper.
            if version_info >= (2, 18):
                return
            raise
        self._is_open = True
        self._session.live.url_figures = self._urls.known_figures
        self._session.at_refusal(self._end)
        connect = self._crawler.signals.connect
        if self._urls.keeps_done or self._urls.keeps_failed:
            connect(self._response_received, signal=signals.response_received)
        if self._urls.keeps_failed:
            connect(self._request_reached_downloader, signal=signals.request_reached_downloader)
            self._session.events.listen(self._pages.page_judged)
        self._session.run_every(self._settings.flush_s, self._tick, "url")

    def _use_rules(self, queue_is_shared: bool) -> None:
        from .live.urls.rules import AppliedRules  # only imported if needed

        if queue_is_shared:
            raise SettingError(
                "The queue of this crawl is shared in Redis, so DEDUPE_URL_RULES cannot be used: the requests that rules"
                " filter are kept by this process. Remove DEDUPE_URL_RULES."
            )
        assert self._settings.rules is not None
        self._rules = AppliedRules(self._crawler, self._session, self._settings.rules, self._fingerprints)

    def _open_urls(self) -> None:
        jobdir = self._session.jobdir
        if self._rules is None and jobdir is not None:
            from .urls.rule_records import records_path  # loads the exact set

            if records_path(jobdir).exists():
                raise SettingError(
                    f"The job in {jobdir} was started with URL rules, but DEDUPE_URL_RULES is not set. Set it to the rules"
                    " of the job, or use another JOBDIR."
                )
        self._urls.open()
        if self._rules is not None:
            self._rules.open(self._urls)

    def request_seen(self, request: Request) -> bool:
        """Record the request; True if it was made before."""
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
            rules = self._rules
            if urls.add(fingerprint) or (rules is not None and rules.held.is_scheduled(fingerprint)):
                # A request that is held is found again after a kill: the page with it is not done either.
                if urls.keeps_done:
                    self._pages.found(request)
                if rules is None or not self._is_equated(request, fingerprint):
                    return False
            elif self._pages.is_redirected(request):
                if self._may_return(request, fingerprint):
                    self._session.counters.inc("dedupe/url/redirects_passed")
                    return False
                if rules is not None:
                    # They redirect to a page that was requested before.
                    rules.identities.answered(*(keys for _, keys in rules.identities.chain(request)))
        except Exception as error:  # noqa: BLE001 - Scrapy would silently drop the request
            self._log_error(error)
            return False
        self._session.events.request_filtered(request.url)
        return True

    def _is_equated(self, request: Request, fingerprint: bytes) -> bool:
        """Whether URL rules filter a request whose own URL is new; otherwise record its identity."""
        rules = self._rules
        assert rules is not None
        identities = rules.identities
        keys = identities.keys(request, fingerprint)
        if keys is None:
            return False
        if rules.may_filter(keys, fingerprint):
            if self._pages.is_redirected(request) and (
                any(keys.plain == earlier.plain for _, earlier in identities.chain(request))
                or identities.take_start(keys)
            ):
                self._session.counters.inc("dedupe/url/redirects_passed")
            elif rules.is_filtered(request, fingerprint, keys):
                return True
            identities.record(keys)
        return False

    def log(self, request: Request, spider: Spider) -> None:
        """Count a filtered request, and log it as Scrapy's filter does."""
        extra = {"spider": spider}
        if self._debug:
            logger.debug(
                "Filtered duplicate request: %(request)s (referer: %(referer)s)",
                {"request": request, "referer": referer_str(request)},
                extra=extra,
            )
        elif not self._has_logged_duplicate:
            self._has_logged_duplicate = True
            logger.debug(
                "Filtered duplicate request: %(request)s - no more duplicates will be shown (see"
                " DUPEFILTER_DEBUG to show all duplicates)",
                {"request": request},
                extra=extra,
            )
        self._session.counters.inc("dupefilter/filtered")

    def close(self, reason: str) -> Deferred[None] | None:
        """Save the filter. Does nothing if it was never opened or is already closed."""
        if not self._is_open or self._is_closed:
            return None
        return deferred_from_coro(self._close())

    def clear(self) -> None:
        """Remove all fingerprints. Called by scrapy-redis's scheduler.

        At the start of a crawl (``SCHEDULER_FLUSH_ON_START``) a shared filter is deleted immediately, as the queue is.
        At the end it is deleted only if no other process uses it.
        """
        try:
            self._set_stats()
            self._urls.clear(at_start=not self._is_spider_open)
        except Exception as error:  # noqa: BLE001
            self._session.counters.error("url", error, "The URL filter was not cleared.")

    def _opened(self) -> UrlFilter:
        if not self._is_open:
            # For schedulers that do not call open().
            if not self._is_refused:
                self.open()
            if self._is_refused:
                raise DedupeError("The URL filter could not be opened.")
        return self._urls

    def _end(self) -> None:
        self._is_closed = True

    def _keys(self, request: Request) -> list[bytes]:
        """The recorded keys of a request and of the requests that were redirected to it."""
        chain = self._chain(request) if self._pages.is_redirected(request) else ()
        fingerprint = self._fingerprint(request)
        if self._rules is None:
            return [fingerprint, *chain]
        identities = self._rules.identities
        keys = identities.keys(request, fingerprint)
        all_keys = [] if keys is None else [keys]
        if chain:
            all_keys += [earlier for _, earlier in identities.chain(request)]
        return [
            fingerprint,
            *chain,
            *(key for each in all_keys for key in (*each.of_request(), each.answered)),
        ]

    def _chain(self, request: Request) -> Iterable[bytes]:
        """Fingerprints of the requests that were redirected to this one."""
        for url in request.meta.get("redirect_urls", ()):
            yield self._fingerprint(request, url)

    def _may_return(self, request: Request, fingerprint: bytes) -> bool:
        """Whether a redirect to a seen URL passes. Scrapy itself stops endless redirect chains."""
        # The site sets a cookie and redirects back to the same URL.
        if any(earlier == fingerprint for earlier in self._chain(request)):
            return True
        # A login, language choice or age gate redirects to the start page, which then has other content. This is
        # allowed only once, because some sites redirect every dead link to their home page.
        if not self._urls.take_start(fingerprint):
            return False
        if self._urls.keeps_done:
            self._pages.found(request)
        return True

    # Signals

    def _request_scheduled(self, request: Request) -> None:
        try:
            self._pages.scheduled(request)
            # Other requests are passed to request_seen().
            if not request.dont_filter:
                return
            if self._urls.keeps_done:
                self._pages.found(request)
            if self._is_to_be_recorded(request):
                fingerprint = self._fingerprint(request)
                self._opened().add_start(fingerprint)
                if self._rules is not None:
                    identities = self._rules.identities
                    if (keys := identities.keys(request, fingerprint)) is not None:
                        identities.record(keys, is_start=True)
        except Exception as error:  # noqa: BLE001
            self._log_error(error)

    def _is_to_be_recorded(self, request: Request) -> bool:
        """Whether a request with ``dont_filter`` is recorded, so that links to it are filtered."""
        meta = request.meta
        if meta.get("is_start_request"):
            return self._settings.record_start
        if "retry_times" not in meta or not meta.get("redirect_urls"):
            return False
        # A retry has dont_filter, and a redirect of the retry inherits it. Record the redirect if the original
        # request was recorded.
        urls = self._opened()
        return next(iter(self._chain(request))) in urls and self._fingerprint(request) not in urls

    def _request_reached_downloader(self, request: Request) -> None:
        # Requests of Scrapy's components (robots.txt, media) do not pass through this filter.
        if request.callback is not NO_CALLBACK:
            self._pages.sent(request)

    def _response_received(self, response: Response, request: Request) -> None:
        if request.callback is NO_CALLBACK:
            return
        try:
            is_good = self._pages.answered(response, request)
            # If a middleware returned the response of another request, it is unknown when that request is done.
            if not self._urls.keeps_done or not self._pages.is_in_progress(request):
                return
            known: list[bytes] = []
            # A request with dont_filter may be made twice. The second response has no new links, so it would look
            # like a leaf.
            if not request.dont_filter and (is_good or not self._urls.keeps_failed):
                known = [item for item in self._keys(request) if item in self._urls]
            self._pages.received(response, request, known)
        except Exception as error:  # noqa: BLE001
            self._log_error(error)

    def _spider_opened(self) -> None:
        if self._is_refused:
            raise CloseSpider("dedupe_url_filter")
        self._is_spider_open = True

    def _spider_closed(self) -> Awaitable[None] | None:
        return self._close() if self._is_open else None

    def _log_error(self, error: BaseException) -> None:
        self._session.counters.error("url", error, "Such requests pass and are not recorded.")

    # Saving

    def _tick(self) -> None:
        if not self._is_closed:
            if not self._has_logged_growth and self._urls.layers > 1:
                self._log_growth(self._urls.known_figures())
            if self._rules is not None:
                self._rules.tick()
            self._urls.keep(self._pages.tick() if self._urls.keeps_done else [], self._failed())

    def _failed(self) -> list[bytes]:
        """Fingerprints of the requests that failed since the last call, with their redirect chains."""
        if not self._urls.keeps_failed:
            return []
        failed: list[bytes] = []
        for request in self._pages.failed():
            try:
                # Other requests with dont_filter are not recorded, so there is nothing to forget.
                if not request.dont_filter or "retry_times" in request.meta:
                    failed += self._keys(request)
                    self._session.counters.inc("dedupe/url/failed")
            except Exception as error:  # noqa: BLE001
                self._log_error(error)
        return failed

    async def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._set_stats()
        except Exception as error:  # noqa: BLE001
            self._session.counters.error("url", error, "The stats of the URL filter are missing.")
        lost = 0
        if self._rules is not None:
            try:
                lost = await self._rules.close()
            except Exception as error:  # noqa: BLE001
                self._session.counters.error("url", error, "Requests that URL rules filtered may be lost.")
        try:
            lost += self._pages.left_in_memory()
            await self._urls.close(self._pages.all(), self._failed(), lost=lost)
        except Exception as error:  # noqa: BLE001 - the rest of the crawl must still be closed
            self._session.counters.error("url", error, "The URL filter was not saved correctly.")

    def _set_stats(self) -> None:
        if not self._is_open:
            return
        figures = self._urls.figures()
        # After clear() the filter is empty; keep the stats that were set before it.
        if not figures.get("seen") and self._session.counters.all().get("dedupe/url/seen"):
            return
        for name, value in figures.items():
            self._session.counters.set(f"dedupe/url/{name}", value)
        self._log_growth(figures)

    def _log_growth(self, figures: dict[str, float]) -> None:
        if self._has_logged_growth or figures.get("layers", 0) < 2:
            return
        self._has_logged_growth = True
        logger.warning(
            "The URL filter grew beyond its initial capacity of %s fingerprints. It keeps its error rate, but takes "
            "more memory and time than a filter of the right size. Set DEDUPE_URL_CAPACITY higher.",
            f"{figures['capacity']:,}",
        )
