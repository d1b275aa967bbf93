"""The report of a crawl: sees what is decided while the crawl goes on, keeps it in the store, and writes the page.

What was seen is kept under the crawl's id, for ``scrapy dedupe report``: in the store of the crawl index if the archive
layer is on, else in that of the content layer, each minute (in the first one more often) and when the spider is closed.
A job that goes on adds to what it kept before; what was kept and cannot be read, or was put there by another process
meanwhile, is left as it is. With ``DEDUPE_REPORT`` the page of this crawl is written at the very end, after the commit.

Nothing of this stops the crawl: errors are told once and counted under ``dedupe/errors/report``. Only a page that could not
be written later refuses the start.
"""

from __future__ import annotations

import logging
import shlex
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapy_dedupe.content.content_type import mime_of
from scrapy_dedupe.crawls.dependencies import Dependencies
from scrapy_dedupe.crawls.index import CrawlIndex
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, SettingError, StoreError, folder_fault
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.live.events import Observer
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.reports.observations import Observations
from scrapy_dedupe.reports.serialization import pack, unpack
from scrapy_dedupe.settings.project import settings_of_file
from scrapy_dedupe.stores import parse_store_url

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from scrapy.crawler import Crawler

    from scrapy_dedupe.crawls.recorder import Recorded
    from scrapy_dedupe.live.events import JudgedPage
    from scrapy_dedupe.reports.figures import Report
    from scrapy_dedupe.warc.capture import Capture

logger = logging.getLogger(__name__)

_TICK_S: Final = 5.0
# Each minute, and early on more often, so that a crawl which is killed by then has kept something too.
_TICKS_A_SAVE: Final = 12
_EARLY_TICKS: Final = (1, 2, 4, 8)
_NEEDED: Final = ("jinja2", "vl_convert")


class ReportExtension(Observer):
    """Sees what a crawl saves. Raises :class:`~scrapy_dedupe.errors.SettingError` if its page could not be written."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._crawler = crawler
        self._observations = Observations(spider=session.spider_name)
        # None: what was seen is not kept.
        self._store_url: str | None = None
        self._page: Path | None = None
        self._ticks = 0
        # What the store has, as far as this run knows, and what it tried to put there.
        self._kept: bytes | None = None
        self._tried: bytes | None = None
        page = session.settings.report.page
        if page is not None:
            self._page = session.at_start(lambda: _checked(session.named_path(page)))
        # By then all layers are there, and have had their word on the crawl's id.
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not Session.of(crawler).is_crawl:
            raise NotConfigured
        return cls(crawler)

    # On the event loop

    def _spider_opened(self) -> None:
        session = self._session
        self._store_url = session.layers.get("warc") or session.layers.get("content")
        if self._store_url is not None:
            self._go_on(self._store_url)
        if self._store_url is None and self._page is None:
            return
        session.observers.add(self)
        if self._store_url is not None:
            if self._kept is None:
                # So that a cancel has something to delete, which is seen, and another process something to find.
                session.worker.submit(self._save, self._stats())
            session.run_every(_TICK_S, self._tick, "report")
            session.at_close(self._close)
        if self._page is not None:
            # Behind all that others do at the end, the commit most of all.
            session.at_stop(self._write_page)

    def _go_on(self, url: str) -> None:
        """Take what an earlier run of this crawl kept."""
        session = self._session
        try:
            self._kept = session.at_start(lambda: session.stores.open(url)).reports.load(session.crawl_id)
            if self._kept is not None:
                self._observations = unpack(self._kept, session.crawl_id)
                session.notes["runs"] = "of this run (the report counts all runs of the crawl)"
        except StoreError as error:
            self._store_url = None
            session.counters.error("report", error, "What this run sees is not kept.")

    def request_filtered(self, url: str) -> None:
        self._observations.filtered(url)

    def page_judged(self, page: JudgedPage) -> None:
        verdict = page.verdict
        self._observations.judged(
            page.url,
            page.mime,
            page.status,
            verdict.kind,
            verdict.original_url,
            verdict.similarity,
            page.dropped,
            page.size_bytes,
            same_url=verdict.same_url,
            is_bare=page.is_bare,
        )

    def _tick(self) -> None:
        self._ticks += 1
        if _is_due(self._ticks):
            self._session.worker.submit(self._save, self._stats())

    async def _close(self) -> None:
        await self._session.on_worker(lambda: None)
        # What the worker counted has come in now.
        if await self._session.on_worker(self._save, self._stats(), is_last=True):
            self._session.notes["more"] = self._command()

    def _command(self) -> str:
        """What shows the report, so that it can be pasted in this folder."""
        assert self._store_url is not None
        command = f"scrapy dedupe report {self._session.crawl_id}"
        try:
            usual = settings_of_file()
        except SettingError:
            is_usual = False
        else:
            is_usual = self._store_url in (usual.warc.index_url, usual.content.store_url)
        return (
            command
            if is_usual
            else f"{command} --store {shlex.quote(parse_store_url(self._store_url).shown)}"
        )

    def _stats(self) -> dict[str, Any]:
        # Until the end the filter's own figures are not among them.
        figures = self._session.live.url_figures
        urls = {} if figures is None else {f"dedupe/url/{name}": value for name, value in figures().items()}
        return {**urls, **self._session.counters.all()}

    async def _write_page(self) -> None:
        stats = self._stats()
        try:
            await self._session.on_worker(self._write, stats)
        except Exception as error:  # noqa: BLE001 - the crawl itself has ended well
            if isinstance(error, OSError):
                error = ArchiveError(f"The page {self._page} cannot be written: {error.strerror or error}.")
            self._session.counters.error("report", error, "That changes nothing of the crawl itself.")
            # An earlier error of this kind may be the one that is in the log.
            self._session.notes["report"] = f"{self._page} was not written"
        else:
            self._session.notes["report"] = str(self._page)

    # On the worker

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        self._observations.recorded(
            capture.url,
            mime_of((capture.content_type or b"").decode("latin-1")),
            capture.status,
            recorded.kind,
            recorded.written,
            recorded.conserved_size,
        )

    def _save(self, stats: dict[str, Any], *, is_last: bool = False) -> bool:
        """Keep what was seen so far; whether that was done. The last time the store is asked whatever it did before."""
        session, url = self._session, self._store_url
        if url is None:
            return False
        guard = session.stores.breaker(url)
        if guard.open and not is_last:
            return False
        try:
            reports = session.stores.open(url).reports
            if not self._is_ours(reports.load(session.crawl_id)):
                self._store_url = None
                return False
            self._observations.set_stats(stats)
            self._tried = pack(self._observations)
            reports.save(session.crawl_id, self._tried)
            self._kept = self._tried
        except StoreError as error:
            guard.failed(error)
        except Exception as error:  # noqa: BLE001 - no fault of ours may cost a page
            session.counters.error("report", error, "What was seen is not kept.")
        else:
            guard.worked(has_written=True)
            return True
        return False

    def _is_ours(self, there: bytes | None) -> bool:
        """Whether what the store has is what this run found or put there; what else it is, is told."""
        # A save that failed may have come through all the same.
        if there in (self._kept, self._tried):
            return True
        crawl = self._session.crawl_id
        if there is None:
            self._session.loop.call(
                logger.warning,
                "What was seen during the crawl %s was forgotten meanwhile, as it is when the crawl is canceled or its"
                " texts are purged. No more of it is kept.",
                crawl,
            )
        else:
            self._session.counters.error(
                "report",
                CrawlStateError(
                    f"Another process keeps what it sees under the crawl id {crawl} as well. What it kept was left as it"
                    " is; no more is kept of this run."
                ),
                "Give each process an id of its own (DEDUPE_CRAWL_ID).",
            )
        return False

    def _write(self, stats: dict[str, Any]) -> None:
        # It brings a template engine and a renderer with it.
        from scrapy_dedupe.reports.page import page

        assert self._page is not None
        self._observations.set_stats(stats)
        text = page(self._report())
        whole_file.replace(self._page, text.encode())

    def _report(self) -> Report:
        from scrapy_dedupe.reports.reported_crawls import graph_of
        from scrapy_dedupe.reports.sums import CrawlSeen, report_of

        session, crawl = self._session, self._session.crawl_id
        url = session.layers.get("warc")
        if url is not None and not session.stores.breaker(url).open:
            try:
                index = CrawlIndex(session.stores.open(url).index)
                dependencies = Dependencies(index, session.settings.wacz.folder)
                graph, info = graph_of(dependencies, [crawl]), dependencies.crawls.get(crawl)
            except StoreError as error:
                session.stores.breaker(url).failed(error)
            else:
                return report_of([CrawlSeen(crawl, info, self._observations)], graph=graph)
        return report_of([CrawlSeen(crawl, None, self._observations)])


def _is_due(tick: int) -> bool:
    """Whether what was seen is to be kept at this tick, the first of which is 1."""
    return tick in _EARLY_TICKS or tick % _TICKS_A_SAVE == 0


def _checked(page: Path) -> Path:
    """The file that *page* is or links to. Raises :class:`SettingError` if no page can be written there."""
    for name in _NEEDED:
        if find_spec(name) is None:
            raise SettingError(
                f"DEDUPE_REPORT needs the package {name}, which is not installed. Run:"
                ' pip install "scrapy-dedupe[report]"'
            )
    try:
        return whole_file.try_out(page)
    except OSError as error:
        reason, remedy = folder_fault(page.parent, error, "another file")
        raise SettingError(
            f"The page of DEDUPE_REPORT cannot be written to {page}: {reason}. {remedy}"
        ) from error
