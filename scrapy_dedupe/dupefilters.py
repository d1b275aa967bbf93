"""The dupefilter: asks each URL once.

A request is known by what ``crawler.request_fingerprinter`` makes of it. The answer comes from a growing
Bloom filter: one of this process, kept under ``JOBDIR``, or one in Redis that several processes share. An
error of ours lets the request through and is counted; :meth:`BloomDupeFilter.request_seen` never raises.

What differs from Scrapy's own filter: a redirect chain that comes back to a request of its own chain passes;
start requests are recorded, though not filtered; after a kill only requests that were done, and whose pages
brought nothing new, count as seen.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import signals, version_info
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.request import referer_str

from .errors import DedupeError
from .page_watch import PageWatch
from .session import Session, away_at_start
from .stores import parse_store_url
from .urls.attachment import Kept
from .urls.bloom import GrowingBloomFilter
from .urls.journal import MAX_FINGERPRINT_BYTES
from .urls.shared import SharedBloomFilter
from .urls.snapshot import FilterFolder, LastStop
from .urls.standin import SteadySharedFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred

logger = logging.getLogger(__name__)

# The event loop waits for the answer of a shared filter, so a silent server may not hold it up for long.
_LONGEST_WAIT_S = 1.0


class BloomDupeFilter(BaseDupeFilter):
    """``DUPEFILTER_CLASS``; see the module. Works under Scrapy's scheduler and under scrapy-redis's."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._session = Session.of(crawler)
        self._settings = self._session.settings.urls
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._filter: GrowingBloomFilter | SteadySharedFilter | None = None
        self._folder: FilterFolder | None = None
        self._pages = PageWatch(crawler)
        # Done, but perhaps not archived yet.
        self._settling: list[bytes] = []
        self._kept: Kept | None = None
        # scrapy-redis's scheduler calls neither open nor close, and says with clear() when to delete.
        self._deletes_on_clear_alone = False
        self._is_refused = False
        self._is_closed = False
        self._told_drop = False
        self._told_growth = False
        connect = crawler.signals.connect
        connect(self._spider_closed, signal=signals.spider_closed)
        connect(self._request_scheduled, signal=signals.request_scheduled)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BloomDupeFilter:
        self = cls(crawler)
        jobdir = self._session.jobdir
        if jobdir is not None and self._settings.store_url is None:
            # The scheduler opens its queue before it opens the filter.
            folder = FilterFolder.in_job(jobdir, self._fingerprinter_path())
            self._session.at_start(folder.set_queue_aside)
        return self

    @classmethod
    def from_spider(cls, spider: Spider) -> BloomDupeFilter:
        """For scrapy-redis's scheduler."""
        self = cls(spider.crawler)
        self._deletes_on_clear_alone = True
        self.open()
        if self._settings.store_url is None:
            logger.warning(
                "The queue of this crawl is shared through Redis, its URL filter is not: other processes may ask "
                "for the same pages. Set DEDUPE_URL_STORE_URL."
            )
        return self

    # What the scheduler calls

    def open(self) -> None:
        """Open or make the filter. An error is logged as a sentence, and the crawl does not start."""
        try:
            is_shared = self._settings.store_url is not None
            self._session.at_start(self._open_shared if is_shared else self._open_local)
        except DedupeError as error:
            self._is_refused = True
            # Before 2.18 Scrapy did not take a CloseSpider here.
            if version_info >= (2, 18):
                raise CloseSpider("dedupe_url_filter") from error
            raise

    def request_seen(self, request: Request) -> bool:
        """Whether the request was made before; records it."""
        try:
            fingerprint = self._fingerprint(request)
            if self._opened().add(fingerprint):
                self._watch_growth()
                if self._folder is not None:
                    self._pages.found(request)
                return False
            if self._comes_back(request, fingerprint):
                self._session.inc("dedupe/url/redirects_passed")
                return False
        except Exception as error:  # noqa: BLE001 - Scrapy would drop the request without a trace
            self._passed(error)
            return False
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
        self._session.inc("dupefilter/filtered")

    def close(self, reason: str) -> Deferred[None] | None:
        """Save the filter. Does nothing when it was never opened, or is closed."""
        if self._filter is None or self._is_closed:
            return None
        return deferred_from_coro(self._close())

    def clear(self) -> None:
        """Forget everything, at the wish of scrapy-redis's scheduler; a shared filter goes with its last user."""
        filter_ = self._filter
        try:
            if isinstance(filter_, SteadySharedFilter):
                self._set_stats()
                filter_.clear()
            elif filter_ is not None:
                self._set_stats()
                self._filter = GrowingBloomFilter(self._settings.capacity, self._settings.error_rate)
                if self._folder is not None:
                    self._session.worker.submit(self._folder.clear)
        except Exception as error:  # noqa: BLE001
            self._session.error("url", error, "The URL filter was not cleared.")

    # Opening

    def _open_shared(self) -> None:
        from .stores.redis import connect  # of use to this way alone

        settings, url = self._settings, self._settings.store_url
        assert url is not None
        spider = self._crawler.spider
        kept = Kept() if self._kept_path is None else Kept.read(self._kept_path)
        # Scrapy-redis has its queue in Redis, where a killed process leaves it whole.
        is_in_redis = self._deletes_on_clear_alone and self._crawler.settings.getbool("SCHEDULER_PERSIST")
        shared = SharedBloomFilter(
            connect(parse_store_url(url), min(self._session.settings.store_timeout_s, _LONGEST_WAIT_S)),
            settings.key % {"spider": spider.name if spider is not None else self._crawler.spidercls.name},
            settings.capacity,
            settings.error_rate,
            url=parse_store_url(url).shown,
            fingerprinter=self._fingerprinter_path(),
            keep="*" if is_in_redis else kept.born,
            gone=[kept.token],
        )
        with away_at_start():
            attachment = shared.attach()
        self._session.at_refusal(lambda: self._give_back(lambda: shared.detach(delete=not settings.persist)))
        for sentence in attachment.notes(shared.name):
            logger.info("%s", sentence)
        for sentence in attachment.warnings(shared.name):
            logger.warning("%s", sentence)
        self._keep_name(shared)
        self._filter = SteadySharedFilter(shared, self._session.guard(url), self._session.worker.submit)
        self._session.run_every(settings.flush_s, self._filter.tick)

    @property
    def _kept_path(self) -> Path | None:
        jobdir = self._session.jobdir
        return (
            None if jobdir is None or self._deletes_on_clear_alone else jobdir / "dedupe" / "urls" / "shared"
        )

    def _keep_name(self, shared: SharedBloomFilter) -> None:
        """Keep in JOBDIR which filter this job uses; the server may have lost the one that it began with."""
        kept = Kept(shared.born or "", shared.token)
        if self._kept_path is not None and kept.born and kept != self._kept:
            kept.write(self._kept_path)
            self._kept = kept

    def _open_local(self) -> None:
        settings, jobdir = self._settings, self._session.jobdir
        if jobdir is None:
            self._filter = GrowingBloomFilter(settings.capacity, settings.error_rate)
            return
        folder = FilterFolder.in_job(jobdir, self._fingerprinter_path())
        opened = folder.open(settings.capacity, settings.error_rate)
        self._filter, self._folder = opened.filter, folder
        for note in opened.notes:
            logger.info("%s", note)
        if opened.taken_over:
            logger.info(
                "The URL filter took over %d fingerprints from %s.", opened.taken_over, folder.scrapy_file
            )
        if opened.last_stop is LastStop.CUT:
            logger.warning(
                "The last run of this job was cut: the %d URLs that were done and brought no new links are known. "
                "Pages that brought links are asked for again, and others when they are found again, since "
                "Scrapy's own queue may have lost requests; it was set aside in %s.",
                len(opened.filter),
                jobdir,
            )
        self._crawler.signals.connect(self._response_received, signal=signals.response_received)
        # The snapshot was taken away when it was read; after a start that came to nothing it is due again.
        is_clean = opened.last_stop is LastStop.CLEAN
        self._session.at_refusal(
            lambda: self._give_back((lambda: folder.close(opened.filter)) if is_clean else folder.abandon)
        )
        self._session.run_every(settings.flush_s, self._flush)

    def _give_back(self, action: Callable[[], object]) -> None:
        self._is_closed = True
        action()

    def _opened(self) -> GrowingBloomFilter | SteadySharedFilter:
        if self._filter is None:
            if self._is_refused:
                raise DedupeError("The URL filter could not be opened.")
            # A scheduler that does not call open() gets a filter all the same.
            self.open()
            assert self._filter is not None
        return self._filter

    # Fingerprints

    def _fingerprint(self, request: Request) -> bytes:
        assert self._crawler.request_fingerprinter is not None
        fingerprint = self._crawler.request_fingerprinter.fingerprint(request)
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

    def _chain(self, request: Request) -> Iterable[bytes]:
        """Fingerprints of the requests that were redirected to this one."""
        for url in request.meta.get("redirect_urls", ()):
            yield self._fingerprint(request.replace(url=url))

    def _comes_back(self, request: Request, fingerprint: bytes) -> bool:
        # A site that sets a cookie and sends the client back to the same URL. Scrapy limits such chains itself.
        return any(earlier == fingerprint for earlier in self._chain(request))

    # Signals

    def _request_scheduled(self, request: Request) -> None:
        # The others come to request_seen().
        if not request.dont_filter:
            return
        try:
            if self._folder is not None:
                self._pages.found(request)
            if self._settings.record_start and request.meta.get("is_start_request"):
                self._opened().add(self._fingerprint(request))
        except Exception as error:  # noqa: BLE001
            self._passed(error)

    def _response_received(self, response: Response, request: Request) -> None:
        # What components fetch for themselves (robots.txt, media) was not asked for through this filter.
        if request.callback is NO_CALLBACK or not isinstance(self._filter, GrowingBloomFilter):
            return
        # A middleware may answer with the response of another request; when that one is done, nobody knows.
        if not self._pages.is_in_progress(request):
            return
        try:
            known: list[bytes] = []
            # One that passes the filter by may be asked for a second time, and then find nothing new any more.
            if not request.dont_filter:
                chain = self._chain(request) if self._pages.is_redirected(request) else ()
                fingerprints = [self._fingerprint(request), *chain]
                known = [fingerprint for fingerprint in fingerprints if fingerprint in self._filter]
            self._pages.received(response, request, known)
        except Exception as error:  # noqa: BLE001
            self._passed(error)

    async def _spider_closed(self) -> None:
        if self._filter is not None:
            await self._close()

    def _passed(self, error: BaseException) -> None:
        self._session.error("url", error, "Such requests pass, and are not recorded.")

    # Keeping

    def _flush(self) -> None:
        """Hand over to the journal what is done by now."""
        if self._settling or self._is_closed:
            return
        self._settling = self._pages.tick()
        if self._settling:
            # What the archive could not write has to be asked for again; the worker knows when it comes to it.
            future = self._session.worker.submit(lambda: None)
            future.add_done_callback(lambda _: self._session.loop.call(self._journal))

    def _journal(self) -> None:
        if self._folder is None or self._is_closed:
            return
        done, self._settling = self._settling, []
        if not self._session.is_spoiled:
            future = self._session.worker.submit(self._folder.record_done, done)
            future.add_done_callback(lambda future: self._not_kept(future.exception()))

    def _not_kept(self, error: BaseException | None) -> None:
        if error is not None:
            self._session.error("url", error, "The URL filter itself goes on.")

    async def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._set_stats()
        except Exception as error:  # noqa: BLE001
            self._session.error("url", error, "The numbers of the URL filter are missing from the stats.")
        try:
            # What the archive has not taken by now is known afterwards.
            await self._session.on_worker(lambda: None)
            if self._folder is not None and self._session.is_spoiled:
                logger.warning(
                    "The archive lacks pages of this run, so for the URL filter it counts as cut: the next run with "
                    "this JOBDIR asks for them again."
                )
                await self._session.on_worker(self._folder.abandon)
            elif self._folder is not None:
                # The engine has waited for every callback before it closes the scheduler.
                await self._session.on_worker(self._save, self._folder, self._settling + self._pages.all())
            elif isinstance(self._filter, SteadySharedFilter):
                await self._session.on_worker(self._leave, self._filter)
        except Exception as error:  # noqa: BLE001 - the rest of the crawl has to be closed all the same
            self._session.error("url", error, "The URL filter was not saved as it should be.")

    def _save(self, folder: FilterFolder, done: list[bytes]) -> None:
        assert isinstance(self._filter, GrowingBloomFilter)
        try:
            folder.record_done(done)
        finally:
            # The snapshot holds all that the journal lacks, so it is written even if the journal is not.
            folder.close(self._filter)

    def _leave(self, filter_: SteadySharedFilter) -> None:
        self._keep_name(filter_.shared)
        filter_.leave(
            delete=not self._settings.persist and not self._deletes_on_clear_alone,
            cut=self._session.is_spoiled and self._kept_path is not None,
        )

    def _set_stats(self) -> None:
        filter_ = self._filter
        stats = self._crawler.stats
        if filter_ is None or stats is None:
            return
        counted = filter_.shared if isinstance(filter_, SteadySharedFilter) else filter_
        seen = len(counted)
        # After clear() there is nothing left; what was counted before it stays.
        if not seen and stats.get_value("dedupe/url/seen"):
            return
        for name, value in (
            ("seen", seen),
            ("capacity", counted.capacity),
            ("layers", counted.layers),
            ("bytes", counted.size_bytes),
            ("fill_ratio", counted.fill_ratio),
            ("estimated_error", counted.estimated_error),
            ("expected_lost", counted.expected_lost),
        ):
            stats.set_value(f"dedupe/url/{name}", value)
        if isinstance(counted, SharedBloomFilter) and counted.layers > 1:
            self._tell_growth(counted.capacity)

    def _watch_growth(self) -> None:
        filter_ = self._filter
        if not self._told_growth and isinstance(filter_, GrowingBloomFilter) and filter_.layers > 1:
            self._tell_growth(filter_.capacity)

    def _tell_growth(self, capacity: int) -> None:
        if self._told_growth:
            return
        self._told_growth = True
        logger.warning(
            "The URL filter grew past its first capacity of %s fingerprints. It keeps its error rate, but takes "
            "more memory and time than one of the right size: set DEDUPE_URL_CAPACITY higher.",
            f"{capacity:,}",
        )
