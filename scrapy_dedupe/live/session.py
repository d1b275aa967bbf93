"""The session of a crawl: settings, crawl id, worker, stores, counters and shutdown, shared by all components.

Each component works without the others. The first component creates the session of its crawler.
"""

from __future__ import annotations

import inspect
import logging
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from scrapy import signals

from scrapy_dedupe.crawls import new_crawl_id
from scrapy_dedupe.errors import ArchiveError, DedupeError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.folders import job_fault
from scrapy_dedupe.settings.placement import archive_faults, cache_faults, check_places, rules_faults
from scrapy_dedupe.settings.project import is_crawl, is_run_by_command
from scrapy_dedupe.settings.specs import Settings, read_settings, warn_of_unknown
from scrapy_dedupe.settings.values import fill_in

from . import memory
from .engine import Throttle, engine_of
from .events import Events
from .figures import Counters, LiveFigures
from .stores import CrawlStores
from .summary import summary_lines
from .threads import EventLoop, Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_dedupe.crawls.captured_records import RecentExchanges

    from .responses import KnownDigest

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_dedupe_session"

CRAWL_ID_FILE = "crawl-id"

_FREE_TREES_S = 0.1


class Session:
    """The session of one crawler; use :meth:`of` to get it. Logs and raises :class:`DedupeError` for invalid settings."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.reason: str | None = None
        self.notes: dict[str, str] = {}
        # Layers that use a store, with the URL of the store.
        self.layers: dict[str, str] = {}
        self._worker: Worker | None = None
        self._refusal: DedupeError | None = None
        self._at_stop: list[Callable[[], Any]] = []
        self._at_refusal: list[Callable[[], object]] = []
        self._at_open: list[Callable[[], object]] = []
        self._at_close: list[Callable[[], Any]] = []
        self._has_opened = False
        # A file cannot be written, so the archive lacks exchanges.
        self.is_spoiled = False
        self._started = datetime.now(UTC).replace(microsecond=0)
        self.loop = EventLoop()
        # The bodies of exchanges and cached pages with the function that returns their SHA-256 in hex, by their responses.
        # Filled by the archive layer.
        self.digests: WeakKeyDictionary[Response, KnownDigest] = WeakKeyDictionary()
        # Waits for the record of a request and sets its meta["warc"]. Set by the archive layer.
        self.set_warc_meta: Callable[[Request], Awaitable[None]] | None = None
        self.live = LiveFigures()
        self.counters = Counters(crawler, self.loop)
        self.events = Events(self.counters)
        self.stores = CrawlStores(lambda: self.settings, self.loop, self.counters, self.close_spider)
        self.is_crawl = is_crawl(crawler)
        self.settings: Settings = self.at_start(lambda: read_settings(crawler.settings))
        if not self.is_crawl:
            self.settings = self.settings.without_memory()
        warn_of_unknown(crawler.settings)
        self.at_start(lambda: check_places(crawler.settings))
        if self.is_crawl:
            for faults in (archive_faults, cache_faults, rules_faults):
                for sentence, remedy in faults(crawler.settings):
                    logger.warning("%s %s", sentence, remedy)
        self.jobdir: Path | None = self.settings.jobdir
        self._throttle = Throttle(
            crawler, self.settings.warc.queue_bytes, lambda: self.queue_bytes, self.loop, self.counters
        )
        freezes = self.settings.gc_freeze
        if freezes is None:
            freezes = is_run_by_command()
        self._has_frozen = False
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        if self.is_crawl and freezes:
            # Sent after all components have opened.
            crawler.signals.connect(self._freeze, signal=signals.engine_started)
            self._trees = memory.PageTrees()
            crawler.signals.connect(self._trees.add, signal=signals.response_received)
            self.run_every(_FREE_TREES_S, self._trees.free, "memory")
        crawler.signals.connect(self._spider_closed, signal=signals.spider_closed)
        crawler.signals.connect(self._engine_stopped, signal=signals.engine_stopped)

    @classmethod
    def of(cls, crawler: Crawler) -> Session:
        """Return the session of *crawler*; create it on the first call."""
        # An attribute of the crawler, so that both are freed together: the session refers to its crawler.
        session = vars(crawler).get(_ATTRIBUTE)
        if session is None:
            session = cls(crawler)
            setattr(crawler, _ATTRIBUTE, session)
        return session

    # Start

    def at_start(self, action: Callable[[], T]) -> T:
        """Run a startup step and return its result. Log a :class:`DedupeError` before re-raising it.

        Scrapy can replace an exception from ``from_crawler`` by one of its own, so the message must be logged first.
        Calls may be nested; the error is logged once.
        """
        try:
            return action()
        except DedupeError as error:
            if error is not self._refusal:
                self._refusal = error
                logger.error("The crawl does not start. %s", error)
                self._abandon()
            raise

    def at_refusal(self, action: Callable[[], object]) -> None:
        """Run *action* if a later startup step fails."""
        self._at_refusal.append(action)

    def _abandon(self) -> None:
        """Release all resources. Scrapy does not send ``engine_stopped`` for a crawl that did not start."""
        actions, self._at_refusal = self._at_refusal, []
        for action in actions:
            try:
                action()
            except DedupeError as error:
                # Usually for the same reason that was logged with the refusal.
                if str(error) not in str(self._refusal):
                    logger.error("%s", error)
        self.stores.close(lambda error: logger.error("%s", error))
        if self._worker is not None:
            self._worker.stop()

    # Crawl id

    @cached_property
    def crawl_id(self) -> str:
        """The id of the crawl in the index: from the setting, from JOBDIR, or a new one."""
        return self.settings.warc.crawl_id or self._saved_crawl_id() or self.renew_crawl_id()

    @property
    def known_crawl_id(self) -> str | None:
        """The id of the crawl if a layer has requested it, otherwise None. Every layer that stores data requests it."""
        return vars(self).get("crawl_id")

    def renew_crawl_id(self) -> str:
        """Create a new crawl id, save it in JOBDIR and return it."""
        self.crawl_id = new_crawl_id(self.spider_name)
        if self.jobdir is not None:
            folder = self.jobdir / "dedupe"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                whole_file.replace(
                    folder / CRAWL_ID_FILE,
                    f"{self.crawl_id}\n".encode("ascii"),
                    suffix=".tmp",
                    durable=False,
                )
            except OSError as error:
                raise ArchiveError(job_fault(self.jobdir, error, folder)) from error
        return self.crawl_id

    def _saved_crawl_id(self) -> str | None:
        if self.jobdir is None:
            return None
        try:
            return (self.jobdir / "dedupe" / CRAWL_ID_FILE).read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    @property
    def spider_name(self) -> str:
        """The name of the spider or, before it exists, of its class; ``crawl`` if the class has no name."""
        return str(getattr(self.crawler.spider or self.crawler.spidercls, "name", None) or "crawl")

    def named_path(self, path: str) -> Path:
        """Return *path* with ``%(name)s`` and ``%(time)s`` (start time) replaced, as in feed URIs."""
        return fill_in(path, self.spider_name, self._started.isoformat().replace(":", "-"))

    # Work

    @cached_property
    def exchanges(self) -> RecentExchanges:
        """The exchanges that the crawl read last from the archive. For use on the worker."""
        # Imported lazily: only crawls with an archive need it.
        from scrapy_dedupe.crawls.captured_records import RecentExchanges

        return RecentExchanges()

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(
                f"dedupe-{self.spider_name}", self.settings.warc.queue_bytes, self._throttle.limit_crossed
            )
        return self._worker

    @property
    def queue_bytes(self) -> int:
        """Size of the exchanges that wait to be written, in bytes."""
        return self._worker.pending_bytes if self._worker is not None else 0

    async def on_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function* on the worker, after all tasks submitted before, and return its result."""
        return await self.loop.wait_for(self.worker.submit(function, *args, **kwargs))

    def run_every(self, seconds: float, action: Callable[[], None], layer: str) -> None:
        """Run *action* on the event loop every *seconds* seconds until the engine has stopped.

        Errors are counted as errors of *layer*.
        """
        self.loop.run_every(
            seconds, action, lambda error: self.counters.error(layer, error, "It will be retried.")
        )

    def at_open(self, action: Callable[[], object]) -> None:
        """Run *action* when the spider is opened and all components exist, unless a startup step has failed."""
        self._at_open.append(action)

    def at_close(self, action: Callable[[], Any]) -> None:
        """Run *action*, which may be ``async``, when the spider is closed and stats can still be changed."""
        self._at_close.append(action)

    def at_stop(self, action: Callable[[], Any]) -> None:
        """Run *action*, which may be ``async``, after the engine has stopped. Actions run in registration order."""
        self._at_stop.append(action)

    def close_spider(self, reason: str) -> None:
        """End the crawl with *reason*."""
        engine, spider = engine_of(self.crawler), self.crawler.spider
        if engine is None or spider is None:
            return
        if hasattr(engine, "close_spider_async"):
            self.loop.start(engine.close_spider_async(reason=reason))
        else:
            engine.close_spider(spider, reason)

    # Signals

    def _spider_opened(self) -> None:
        # Scrapy also opens a spider whose scheduler could not be opened, so that it can close it.
        if self._refusal is not None:
            return
        self._has_opened = True
        if self.is_crawl:
            memory.keep_freed_memory()
        self.loop.open()
        for action in self._at_open:
            action()

    def _freeze(self) -> None:
        self._has_frozen = memory.freeze_for_crawl()

    async def _run_all(self, actions: list[Callable[[], Any]]) -> None:
        for action in actions:
            try:
                result = action()
                if inspect.isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001 - the other layers must still be closed
                self.counters.error("close", error, "The shutdown of this layer is incomplete.")

    def _spider_closed(self, reason: str) -> Awaitable[None] | None:
        self.reason = reason
        if self._refusal is not None:
            return None
        if not self._has_opened:
            # Another component failed at startup.
            self._abandon()
            return None
        # Scrapy awaits the result. Other senders of the signal, such as tests, may not.
        return self._finish() if self._at_close or self._worker is not None else None

    async def _finish(self) -> None:
        # Finish all waiting tasks now: Scrapy logs the stats next, and they must include these tasks.
        await self._run_all(self._at_close)
        if self._worker is not None:
            await self.on_worker(lambda: None)

    def _engine_stopped(self) -> Awaitable[None] | None:
        if self._has_frozen:
            self._has_frozen = False
            memory.unfreeze_after_crawl()
        return self._stop() if self._has_opened else None

    async def _stop(self) -> None:
        await self._run_all(self._at_stop)
        self.loop.close()
        if self._worker is not None:
            self._worker.stop()
        self.stores.close(lambda error: self.counters.error("close", error, "All data had been written."))
        if self.is_crawl:
            for line in summary_lines(self.counters.all(), self.notes):
                logger.info("%s", line)
