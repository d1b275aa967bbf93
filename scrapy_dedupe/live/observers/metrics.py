"""The extension that exports the metrics of a crawl for Prometheus: on a port, in a file, or both.

The values are read at the time of a scrape, on the thread that answers it, without extra work for the crawl. The metrics
are defined in :mod:`.metric_families`, the outputs in :mod:`.metric_outputs`.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.live.session import Session

from .metric_families import Reading, label, read_crawl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from scrapy.crawler import Crawler

    from scrapy_dedupe.settings.groups import MetricsSettings

    from .metric_outputs import MetricsOutput


class MetricsExtension:
    """Exports metrics. Raises :class:`~scrapy_dedupe.errors.SettingError` at startup if an output cannot be opened."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._outputs: list[MetricsOutput] = []
        # Set before the layers start: Scrapy creates them after the extensions.
        session.live.is_watched = True
        self._source = CrawlSource(crawler, session)
        # If another component fails at startup, no signal is sent, but the port must still be released.
        self._finalizer = weakref.finalize(crawler, _leave_later, self._outputs, self._source)
        self._finalizer.atexit = False
        session.at_start(self._enter)
        session.at_open(self._open)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        session = Session.of(crawler)
        metrics = session.settings.metrics
        if not session.is_crawl or (not metrics.port and metrics.file is None):
            raise NotConfigured
        return cls(crawler)

    def _enter(self) -> None:
        outputs = outputs_of(self._session.settings.metrics, self._session.named_path)
        from .metric_outputs import enter

        self._session.at_refusal(self._leave)
        for output in outputs:
            self._outputs.append(enter(output, self._source))

    def _open(self) -> None:
        self._source.can_report = True
        # Last, so that the metrics include what the other components count at the end.
        self._session.at_stop(self._close)

    async def _close(self) -> None:
        # On the worker, since stopping the server blocks.
        await self._session.on_worker(self._leave)

    def _leave(self) -> None:
        self._finalizer.detach()
        self._source.is_running = False
        outputs = self._outputs.copy()
        self._outputs.clear()
        if outputs:
            from .metric_outputs import leave

            for output in outputs:
                leave(output, self._source)


def outputs_of(settings: MetricsSettings, named_path: Callable[[str], Path]) -> list[MetricsOutput]:
    """The outputs that the settings name. None is open. Raises SettingError if they need prometheus-client and it is missing."""
    if not settings.port and settings.file is None:
        return []
    try:
        from .metric_outputs import MetricsFile, Port
    except ImportError as error:
        raise SettingError(
            "Metrics (DEDUPE_METRICS_PORT, DEDUPE_METRICS_FILE) need the package prometheus-client, and it is not"
            f' installed ({error}). Run: pip install "scrapy-dedupe[prometheus]"'
        ) from error
    outputs: list[MetricsOutput] = []
    if settings.port:
        outputs.append(Port(settings.address, settings.port))
    if settings.file is not None:
        outputs.append(MetricsFile(named_path(settings.file).absolute(), settings.every_s))
    return outputs


class CrawlSource:
    """A crawl as a :class:`~scrapy_dedupe.live.observers.metric_outputs.MetricsSource`, without a reference to the crawler."""

    def __init__(self, crawler: Crawler, session: Session) -> None:
        self.spider = label(session.spider_name)
        self.is_running = True
        # Errors cannot be counted before the event loop runs.
        self.can_report = False
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
        if session is not None and self.can_report:
            session.counters.error("metrics", error, "The crawl continues; its metrics may be out of date.")


def _leave_later(outputs: list[MetricsOutput], source: CrawlSource) -> None:
    # Called by the garbage collector, when this thread may hold any lock: use new threads.
    from .metric_outputs import leave

    source.is_running = False
    for output in outputs:
        threading.Thread(target=leave, args=(output, source), daemon=True).start()
