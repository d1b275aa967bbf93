"""The extension that collects the data of the report, saves it in a store, and writes the report page.

The observations are saved under the crawl id for ``scrapy dedupe report``: in the store of the crawl index if the archive
layer is active, otherwise in the store of the content layer. They are saved every minute (more often in the first minute)
and when the spider is closed. A resumed job adds to its earlier observations. Saved observations that cannot be read, or
that another process has saved under the same id, are not overwritten. With ``DEDUPE_REPORT``, the report page of this
crawl is written at the very end, after the commit.

Errors do not stop the crawl: the first one is logged, and all are counted under ``dedupe/errors/report``. The crawl is
refused at startup only if the report page could not be written.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections import deque
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import NotConfigured

from scrapy_dedupe.errors import ArchiveError, CrawlStateError, SettingError, StoreError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.live.events import Observer
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.reports.observations import Observations, pack, unpack
from scrapy_dedupe.settings.project import settings_of_file
from scrapy_dedupe.stores import parse_store_url

from . import checked_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from scrapy.crawler import Crawler

    from scrapy_dedupe.crawls.recorder import Recorded
    from scrapy_dedupe.live.events import JudgedPage
    from scrapy_dedupe.reports.figures import Report
    from scrapy_dedupe.warc.capture import Capture

logger = logging.getLogger(__name__)

_TICK_S: Final = 5.0
# Every minute, and more often at first, so that a crawl that is killed early has a report too.
_TICKS_PER_SAVE: Final = 12
_EARLY_TICKS: Final = (1, 2, 4, 8)
# Events are counted when so many wait, and at each save.
_EVENTS_AT_ONCE: Final = 1_000
_MOST_WAITING_EVENTS: Final = 20_000
_REQUIRED_PACKAGES: Final = ("jinja2", "vl_convert")


class ReportExtension(Observer):
    """Collects the data of the report.

    Raises :class:`~scrapy_dedupe.errors.SettingError` at startup if the report page could not be written.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._observations = Observations(spider=session.spider_name)
        # None if the observations are not saved.
        self._store_url: str | None = None
        self._page: Path | None = None
        self._ticks = 0
        # Events that the worker has not counted yet: the time, and the call that counts it.
        self._events: deque[tuple[float, Callable[..., None]]] = deque()
        # The observations that this run last found or saved in the store, and those that it last tried to save.
        self._saved: bytes | None = None
        self._tried: bytes | None = None
        page = session.settings.report.page
        if page is not None:
            self._page = session.at_start(lambda: checked_page(session.named_path(page)))
        # Then all layers are active, and the archive layer has decided the crawl id.
        session.at_open(self._open)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not Session.of(crawler).is_crawl:
            raise NotConfigured
        return cls(crawler)

    # On the event loop

    def _open(self) -> None:
        session = self._session
        self._store_url = session.layers.get("warc") or session.layers.get("content")
        if self._store_url is not None:
            self._load_earlier(self._store_url)
        if self._store_url is None and self._page is None:
            return
        session.events.add(self)
        if self._store_url is not None:
            if self._saved is None:
                # Save now, so that a cancel of the crawl or another process with the same id can be detected later.
                session.worker.submit(self._save, self._stats())
            session.run_every(_TICK_S, self._tick, "report")
            session.at_close(self._close)
        if self._page is not None:
            # After the shutdown of all other components, in particular after the commit.
            session.at_stop(self._write_page)

    def _load_earlier(self, url: str) -> None:
        """Load the observations of earlier runs of this crawl."""
        session = self._session
        try:
            self._saved = session.stores.open(url).reports.load(session.crawl_id)
            if self._saved is not None:
                self._observations = unpack(self._saved, session.crawl_id)
                session.notes["runs"] = "of this run (the report counts all runs of the crawl)"
        except StoreError as error:
            self._store_url = None
            session.counters.error("report", error, "The observations of this run are not saved.")

    def request_filtered(self, url: str) -> None:
        self._append(partial(self._observations.filtered, url))

    def page_judged(self, page: JudgedPage) -> None:
        verdict = page.verdict
        self._append(
            partial(
                self._observations.judged,
                page.url,
                page.mime,
                page.response.status,
                verdict.kind,
                verdict.original_url,
                verdict.similarity,
                page.dropped,
                len(page.response.body),
                same_url=verdict.same_url,
                is_bare=page.judgement.is_bare,
            )
        )

    def _append(self, count: Callable[..., None]) -> None:
        # The event loop only appends. The worker counts many events at once, which is several times as fast as one by one.
        self._events.append((time.time(), count))
        waiting = len(self._events)
        if waiting >= _MOST_WAITING_EVENTS:
            # The worker is late: do not let the memory grow.
            self._count_events()
        elif waiting % _EVENTS_AT_ONCE == 0:
            self._session.worker.submit(self._count_events)

    def _tick(self) -> None:
        self._ticks += 1
        if _is_due(self._ticks):
            self._session.worker.submit(self._save, self._stats())

    async def _close(self) -> None:
        await self._session.on_worker(lambda: None)
        # The stats that the worker sent to the event loop have now arrived.
        if await self._session.on_worker(self._save, self._stats(), is_last=True):
            self._session.notes["more"] = self._command()

    def _command(self) -> str:
        """Return the command that shows the report, to be run in the current folder."""
        assert self._store_url is not None
        command = f"scrapy dedupe report {self._session.crawl_id}"
        with suppress(SettingError):
            project = settings_of_file()
            if self._store_url in (project.warc.index_url, project.content.store_url):
                return command
        return f"{command} --store {shlex.quote(parse_store_url(self._store_url).shown)}"

    def _stats(self) -> dict[str, Any]:
        # The stats contain the figures of the URL filter only after the crawl: add the live figures.
        figures = self._session.live.url_figures
        urls = {} if figures is None else {f"dedupe/url/{name}": value for name, value in figures().items()}
        return {**urls, **self._session.counters.all()}

    async def _write_page(self) -> None:
        stats = self._stats()
        try:
            await self._session.on_worker(self._write, stats)
        except Exception as error:  # noqa: BLE001 - the crawl itself has finished
            if isinstance(error, OSError):
                error = ArchiveError(
                    f"The report page {self._page} cannot be written: {error.strerror or error}. Free some space, or name another"
                    " file in DEDUPE_REPORT."
                )
            self._session.counters.error("report", error, "The crawl itself is not affected.")
            # The error may not be in the log, which shows only the first error of a layer.
            self._session.notes["report"] = f"{self._page} was not written"
        else:
            self._session.notes["report"] = str(self._page)

    # On the worker

    def _count_events(self) -> None:
        # Usually on the worker; on the event loop too if the worker is late.
        while True:
            try:
                at_s, count = self._events.popleft()
            except IndexError:
                return
            try:
                count(at_s=at_s)
            except Exception as error:  # noqa: BLE001 - an internal error must not affect the crawl
                self._session.counters.error("report", error, "An event is missing from the report.")

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        self._append(
            partial(
                self._observations.recorded,
                capture.url,
                (capture.content_type or b"").decode("latin-1"),
                capture.status,
                recorded.kind,
                recorded.written,
                recorded.conserved_size,
            )
        )

    def _save(self, stats: dict[str, Any], *, is_last: bool = False) -> bool:
        """Save the observations and return whether that succeeded. With *is_last*, try even if the breaker is open."""
        session, url = self._session, self._store_url
        self._count_events()
        if url is None:
            return False
        guard = session.stores.breaker(url)
        if guard.open and not is_last:
            return False
        try:
            reports = session.stores.open(url).reports
            if not self._is_unchanged(reports.load(session.crawl_id)):
                self._store_url = None
                return False
            self._observations.set_stats(stats)
            self._tried = pack(self._observations)
            reports.save(session.crawl_id, self._tried)
            self._saved = self._tried
        except StoreError as error:
            guard.failed(error)
        except Exception as error:  # noqa: BLE001 - an internal error must not affect the crawl
            session.counters.error("report", error, "The observations are not saved.")
        else:
            guard.worked(has_written=True)
            return True
        return False

    def _is_unchanged(self, stored: bytes | None) -> bool:
        """Return whether the store still has the observations that this run found or saved; log it if not."""
        # A save that reported an error may have succeeded.
        if stored in (self._saved, self._tried):
            return True
        crawl = self._session.crawl_id
        if stored is None:
            self._session.loop.call(
                logger.warning,
                "The report data of the crawl %s was deleted, because the crawl was canceled or its texts were purged."
                " No more report data is saved for this crawl.",
                crawl,
            )
        else:
            self._session.counters.error(
                "report",
                CrawlStateError(
                    f"Another process has saved report data under the crawl id {crawl}. This data is not overwritten; the"
                    " report data of this run is not saved."
                ),
                "Set a different DEDUPE_CRAWL_ID for each process.",
            )
        return False

    def _write(self, stats: dict[str, Any]) -> None:
        # Imported lazily, since it imports a template engine and a renderer.
        from scrapy_dedupe.reports.page import page

        assert self._page is not None
        self._count_events()
        self._observations.set_stats(stats)
        text = page(self._report())
        whole_file.replace(self._page, text.encode(), durable=False)

    def _report(self) -> Report:
        from scrapy_dedupe.crawls.dependencies import Dependencies
        from scrapy_dedupe.reports.sums import NO_GRAPH, CrawlSeen, graph_of, report_of

        session, crawl = self._session, self._session.crawl_id
        url = session.layers.get("warc")
        info, graph = None, NO_GRAPH
        if url is not None and not session.stores.breaker(url).open:
            try:
                index = session.stores.open(url).index
                dependencies = Dependencies(index, session.settings.wacz.folder)
                info, graph = dependencies.crawls.get(crawl), graph_of(dependencies, [crawl])
            except StoreError as error:
                session.stores.breaker(url).failed(error)
        return report_of([CrawlSeen(crawl, info, self._observations.copy())], graph=graph)


def _is_due(tick: int) -> bool:
    """Return whether the observations are saved at this tick. The first tick is 1."""
    return tick in _EARLY_TICKS or tick % _TICKS_PER_SAVE == 0


def checked_page(page: Path, *, is_trial: bool = False) -> Path:
    """Return *page* with links resolved. Raises SettingError if it cannot be written. With *is_trial*, nothing is created."""
    for name in _REQUIRED_PACKAGES:
        if find_spec(name) is None:
            raise SettingError(
                f"DEDUPE_REPORT needs the package {name}, which is not installed. Run:"
                ' pip install "scrapy-dedupe[report]"'
            )
    return checked_file(page, "report page", "DEDUPE_REPORT", is_trial=is_trial)
