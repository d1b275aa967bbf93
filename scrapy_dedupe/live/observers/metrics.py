"""The metrics of a crawl for Prometheus, as an extension: at a port, in a file, or both.

What a scrape gets is read at the time of the scrape, on the thread that answers it; the crawl does nothing for it but
count as always. See :mod:`.metric_families` for the metrics and :mod:`.metric_places` for where they can be read.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.live.session import Session

from .metric_families import Reading, label, read_crawl

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler

    from .metric_outputs import MetricsOutput


class MetricsExtension:
    """Shows the metrics. Raises :class:`~scrapy_dedupe.errors.SettingError` at the start if they cannot be shown."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._places: list[MetricsOutput] = []
        # Before the layers begin, which are made after the extensions.
        session.live.is_watched = True
        self._source = CrawlSource(crawler, session)
        # A start that is given up by others tells nobody; the port has to be free once more all the same.
        self._end = weakref.finalize(crawler, _leave_later, self._places, self._source)
        self._end.atexit = False
        session.at_start(self._enter)
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        session = Session.of(crawler)
        metrics = session.settings.metrics
        if not session.is_crawl or (not metrics.port and metrics.file is None):
            raise NotConfigured
        return cls(crawler)

    def _enter(self) -> None:
        settings = self._session.settings.metrics
        try:
            from .metric_outputs import MetricsFile, Port, enter
        except ImportError as error:
            raise SettingError(
                "Metrics (DEDUPE_METRICS_PORT, DEDUPE_METRICS_FILE) need the package prometheus-client, and it is not"
                f' installed ({error}). Run: pip install "scrapy-dedupe[prometheus]"'
            ) from error
        self._session.at_refusal(self._leave)
        if settings.port:
            place: MetricsOutput = Port(settings.address, settings.port)
            self._places.append(enter(place, ("port", settings.address, settings.port), self._source))
        if settings.file is not None:
            path = self._session.named_path(settings.file).absolute()
            self._places.append(enter(MetricsFile(path, settings.every_s), ("file", path), self._source))

    def _spider_opened(self) -> None:
        self._source.is_heard = True
        # Behind all others: what they count at the end is to be seen too.
        self._session.at_stop(self._close)

    async def _close(self) -> None:
        # It may wait for a server to end.
        await self._session.on_worker(self._leave)

    def _leave(self) -> None:
        self._end.detach()
        self._source.is_running = False
        places = self._places.copy()
        self._places.clear()
        if places:
            from .metric_outputs import leave

            for place in places:
                leave(place, self._source)


class CrawlSource:
    """One crawl, as :class:`~scrapy_dedupe.live.observers.metric_outputs.MetricsSource`. It does not keep the crawler alive."""

    def __init__(self, crawler: Crawler, session: Session) -> None:
        self.spider = label(session.spider_name)
        self.is_running = True
        # Until the event loop is there an error would have nowhere to go.
        self.is_heard = False
        self._session = weakref.ref(session)

    def read(self) -> Reading:
        session = self._session()
        if session is None:
            return {}
        return read_crawl(
            session.counters.all(),
            session.live,
            session.known_crawl_id,
            session.queue_bytes,
            is_running=self.is_running,
        )

    def failed(self, error: Exception) -> None:
        session = self._session()
        if session is not None and self.is_heard:
            session.counters.error("metrics", error, "The crawl goes on; its metrics may be out of date.")


def _leave_later(places: list[MetricsOutput], source: CrawlSource) -> None:
    # Called in the middle of something else, which may hold any lock.
    from .metric_outputs import leave

    source.is_running = False
    for place in places:
        threading.Thread(target=partial(leave, place, source), daemon=True).start()
