"""What the dupefilter, the middleware and the pipeline of one crawl share.

The settings as they were read, the worker, the open stores with their breakers, the crawl's name, the
account of errors, and what has to be done when the engine has stopped. Each of the three works without the
others; whoever comes first makes the session of its crawler.
"""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from scrapy import signals

from scrapy_dedupe.crawls import new_crawl_id
from scrapy_dedupe.errors import ArchiveError, DedupeError, StoreError, StoreUnavailable, folder_fault
from scrapy_dedupe.settings.names import warn_of_unknown
from scrapy_dedupe.settings.placement import check_places
from scrapy_dedupe.settings.project import is_crawl
from scrapy_dedupe.settings.specs import Settings, read_settings
from scrapy_dedupe.settings.values import fill_in
from scrapy_dedupe.stores import open_store, parse_store_url

from .breaker import Breaker
from .event_loop import EventLoop
from .events import Observers
from .figures import LiveFigures
from .page_progress import engine_of
from .recordings import Recordings
from .summary import summary_lines
from .worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_dedupe.stores.base import Store

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_dedupe_session"

CRAWL_ID_FILE = "crawl-id"


class Session:
    """One a crawler; :meth:`of` makes it. Raises :class:`DedupeError` after logging its sentence."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.reason: str | None = None
        self.notes: dict[str, str] = {}
        # The layers that keep something, each with the URL of its store.
        self.layers: dict[str, str] = {}
        self._worker: Worker | None = None
        self._stores: dict[str, Store] = {}
        self._breakers: dict[str, Breaker] = {}
        self._crawl_id: str | None = None
        self._refusal: DedupeError | None = None
        self._told: set[str] = set()
        self._counted: dict[str, float] = {}
        self._at_stop: list[Callable[[], Any]] = []
        self._at_refusal: list[Callable[[], object]] = []
        self._at_close: list[Callable[[], Any]] = []
        self._at_drop: list[Callable[[Request], None]] = []
        self._is_holding_back = False
        self._has_paused = False
        self._has_opened = False
        self.is_spoiled = False
        self._started = datetime.now(UTC).replace(microsecond=0)
        self.loop = EventLoop()
        self.recordings = Recordings(self.loop)
        self.live = LiveFigures()
        self.onlookers = Observers(self._onlooker_failed)
        self.is_crawl = is_crawl(crawler)
        self.settings: Settings = self.at_start(lambda: read_settings(crawler.settings))
        if not self.is_crawl:
            self.settings = self.settings.without_memory()
        warn_of_unknown(crawler.settings)
        self.at_start(lambda: check_places(crawler.settings))
        self.jobdir: Path | None = self.settings.jobdir
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signal=signals.spider_closed)
        crawler.signals.connect(self._engine_stopped, signal=signals.engine_stopped)

    @classmethod
    def of(cls, crawler: Crawler) -> Session:
        """The session of *crawler*."""
        # On the crawler itself, so that the two go together; a session refers to its crawler in many ways.
        session = vars(crawler).get(_ATTRIBUTE)
        if session is None:
            session = cls(crawler)
            setattr(crawler, _ATTRIBUTE, session)
        return session

    # Start

    def at_start(self, action: Callable[[], T]) -> T:
        """Run a step of the start. Its error is logged as one sentence before it stops the crawl.

        Scrapy may hide what a component's ``from_crawler`` raises behind an error of its own, so the sentence
        has to be in the log by then. Steps may be parts of others.
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
        """Run *action* if a later step of the start fails."""
        self._at_refusal.append(action)

    def _abandon(self) -> None:
        """Give back what the start has taken; ``engine_stopped`` is not sent for a crawl that did not start."""
        actions, self._at_refusal = self._at_refusal, []
        for action in (*actions, *(store.close for store in self._stores.values())):
            try:
                action()
            except DedupeError as error:
                logger.error("%s", error)
        self._stores.clear()
        if self._worker is not None:
            self._worker.stop()

    def store(self, url: str) -> Store:
        """The store at *url*, opened and tried once for all layers. Raises :class:`StoreError` at the start."""
        if url not in self._stores:

            def opened() -> Store:
                with away_at_start():
                    store = open_store(url, timeout_s=self.settings.store_timeout_s)
                    try:
                        store.probe()
                    except StoreError:
                        store.close()
                        raise
                    return store

            self._stores[url] = self.at_start(opened)
        return self._stores[url]

    # The crawl's name

    @property
    def crawl_id(self) -> str:
        """The crawl's name in the index: the setting, or what JOBDIR keeps, or a new one."""
        if self._crawl_id is None:
            self._crawl_id = self.settings.warc.crawl_id or self._kept_crawl_id() or self.renew_crawl_id()
        return self._crawl_id

    @property
    def known_crawl_id(self) -> str | None:
        """The crawl's name if a layer has asked for it, which those that keep something do."""
        return self._crawl_id

    def renew_crawl_id(self) -> str:
        """Take a new name and keep it in JOBDIR."""
        self._crawl_id = new_crawl_id(self.spider_name)
        if self.jobdir is not None:
            folder = self.jobdir / "dedupe"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                temporary = folder / f"{CRAWL_ID_FILE}.tmp"
                temporary.write_text(f"{self._crawl_id}\n", encoding="ascii")
                temporary.replace(folder / CRAWL_ID_FILE)
            except OSError as error:
                raise ArchiveError(
                    f"The job folder {self.jobdir} (JOBDIR) cannot be written: {'. '.join(folder_fault(folder, error))}"
                ) from error
        return self._crawl_id

    def _kept_crawl_id(self) -> str | None:
        if self.jobdir is None:
            return None
        try:
            return (self.jobdir / "dedupe" / CRAWL_ID_FILE).read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    @property
    def spider_name(self) -> str:
        """The name of the spider, or of its class while there is no spider yet; *crawl* for a class without a name."""
        return str(getattr(self.crawler.spider or self.crawler.spidercls, "name", None) or "crawl")

    def named_path(self, path: str) -> Path:
        """*path* with the names in it filled in, as a feed has them: ``%(name)s`` and ``%(time)s``, that of the start."""
        return fill_in(path, self.spider_name, self._started.isoformat().replace(":", "-"))

    # Work

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(f"dedupe-{self.spider_name}", on_change=self._balance)
        return self._worker

    @property
    def queue_bytes(self) -> int:
        """Bytes of what waits to be written."""
        return self._worker.pending_bytes if self._worker is not None else 0

    async def on_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function* on the worker, after all that was given to it before, and return its result."""
        return await self.wait_for(self.worker.submit(function, *args, **kwargs))

    async def wait_for(self, future: Future[T]) -> T:
        """Wait for a future of the worker without blocking the event loop."""
        return await self.loop.wait_for(future)

    def run_every(self, seconds: float, action: Callable[[], None], layer: str) -> None:
        """Run *action* on the event loop every so many seconds, until the engine has stopped.

        An error counts as one of *layer*.
        """

        def run() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - a timer that raises is not called again
                self.error(layer, error, "It is tried again in a moment.")

        self.loop.run_every(seconds, run)

    def at_close(self, action: Callable[[], Any]) -> None:
        """Run *action* when the spider is closed, while stats still count; it may be ``async``."""
        self._at_close.append(action)

    def at_stop(self, action: Callable[[], Any]) -> None:
        """Run *action* when the engine has stopped, in the order of registration; it may be ``async``."""
        self._at_stop.append(action)

    def at_drop(self, action: Callable[[Request], None]) -> None:
        """Run *action* for each request whose page the content middleware drops."""
        self._at_drop.append(action)

    def page_dropped(self, request: Request) -> None:
        """The page of *request* was read, and is kept from the spider."""
        for action in self._at_drop:
            action(request)

    def _balance(self) -> None:
        # On either thread. Nothing that waits for the disk is thrown away, so what comes in has to slow down.
        limit = self.settings.warc.queue_bytes
        if self.queue_bytes <= limit // 2 if self._is_holding_back else self.queue_bytes > limit:
            self.loop.call(self._restore_balance)

    def _restore_balance(self) -> None:
        # On the event loop alone: two threads could each undo what the other did.
        limit = self.settings.warc.queue_bytes
        if not self._is_holding_back and self.queue_bytes > limit:
            self._is_holding_back = True
            self._hold_back()
        # Looked at once more: what the worker finished before it could see that, it did not tell.
        if self._is_holding_back and self.queue_bytes <= limit // 2:
            self._is_holding_back = False
            self._let_go()

    def _hold_back(self) -> None:
        engine = engine_of(self.crawler)
        if engine is not None and not engine.paused:
            engine.pause()
            self._has_paused = True
            self.inc("dedupe/warc/held_back")

    def _let_go(self) -> None:
        engine = engine_of(self.crawler)
        if engine is not None and self._has_paused:
            self._has_paused = False
            engine.unpause()
            # By itself the engine would look for requests again within five seconds, if no response is on its way.
            nextcall = getattr(getattr(engine, "_slot", None), "nextcall", None)
            if nextcall is not None:
                nextcall.schedule()

    # Stores that fail, and other errors

    def guard(self, url: str) -> Breaker:
        """The breaker of the store at *url*, the same one for all layers; it counts and tells failures."""
        if url not in self._breakers:
            shown = parse_store_url(url).shown

            def failed(error: BaseException) -> None:
                self.loop.call(self.inc, "dedupe/errors/store")

            def lost(error: BaseException) -> None:
                self.loop.call(self._store_lost, shown, error)

            def back() -> None:
                self.loop.call(self._store_back, shown)

            def probe() -> None:
                # The URL filter has a connection of its own, and says itself when it has written.
                if url in self._stores:
                    self._stores[url].probe()

            self._breakers[url] = Breaker(failed, lost, back, probe)
        return self._breakers[url]

    def _store_lost(self, shown: str, error: BaseException) -> None:
        if self.settings.on_store_error == "close":
            self.close_spider("dedupe_store_error")
        if f"{shown} lost" in self._told:
            return
        self._told.add(f"{shown} lost")
        logger.error(
            "%s The crawl goes on without it: pages are treated as new until %s answers again"
            ' (counted in dedupe/errors/store; DEDUPE_ON_STORE_ERROR = "close" would end the crawl).',
            error,
            shown,
        )

    def _store_back(self, shown: str) -> None:
        if f"{shown} back" not in self._told:
            self._told.add(f"{shown} back")
            logger.info(
                "The store %s answers again. Further gaps are only counted (dedupe/errors/store).", shown
            )

    def error(self, layer: str, error: BaseException, remedy: str) -> None:
        """Count an error of our own under ``dedupe/errors/LAYER`` and log the first one with its remedy."""
        self.loop.call(self._count_error, layer, error, remedy)

    def error_of(self, future: Future[Any], layer: str, remedy: str) -> None:
        """The same with what a call on the worker raises, once it has ended; nothing if it raises nothing."""

        def ended(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                self.error(layer, error, remedy)

        future.add_done_callback(ended)

    def _count_error(self, layer: str, error: BaseException, remedy: str) -> None:
        self.inc(f"dedupe/errors/{layer}")
        if layer in self._told:
            return
        self._told.add(layer)
        expected = isinstance(error, DedupeError)
        logger.error(
            "%s %s Further errors of this kind are counted in dedupe/errors/%s.",
            error if expected else f"Unexpected {type(error).__name__}{': ' if str(error) else ''}{error}.",
            remedy,
            layer,
            exc_info=None if expected else error,
        )

    def _onlooker_failed(self, error: BaseException) -> None:
        self.error("report", error, "What looked on there is told nothing more; the crawl goes on.")

    def close_spider(self, reason: str) -> None:
        """End the crawl with *reason*."""
        engine, spider = engine_of(self.crawler), self.crawler.spider
        if engine is None or spider is None:
            return
        if hasattr(engine, "close_spider_async"):
            self.loop.start(engine.close_spider_async(reason=reason))
        else:
            engine.close_spider(spider, reason)

    def inc(self, key: str, count: int = 1) -> None:
        """Add to a stat of the crawl; on the event loop alone."""
        self._counted[key] = self._counted.get(key, 0) + count
        if self.crawler.stats is not None:
            self.crawler.stats.inc_value(key, count)

    def set_stat(self, key: str, value: float) -> None:
        """Set a stat of the crawl; on the event loop alone."""
        self._counted[key] = value
        if self.crawler.stats is not None:
            self.crawler.stats.set_value(key, value)

    def stats(self) -> dict[str, Any]:
        """A copy of the crawl's stats, on any thread; ours are there whatever ``STATS_CLASS`` keeps."""
        stats = self.crawler.stats
        # A copy is made in one step, while the crawl may add to it at any time.
        return {**self._counted, **((stats.get_stats() if stats is not None else None) or {})}

    # Signals

    def _spider_opened(self) -> None:
        self._has_opened = True
        self.loop.open()

    async def _run_all(self, actions: list[Callable[[], Any]]) -> None:
        for action in actions:
            try:
                result = action()
                if inspect.isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001 - the other layers have to be closed all the same
                self._count_error("close", error, "What this layer had to do at the end was not finished.")

    def _spider_closed(self, reason: str) -> Awaitable[None] | None:
        self.reason = reason
        if self._refusal is not None:
            return None
        if not self._has_opened:
            # Another component has stopped the start.
            self._abandon()
            return None
        # Scrapy waits for it; whoever sends the signal by other means, as tests do, may not.
        return self._finish() if self._at_close or self._worker is not None else None

    async def _finish(self) -> None:
        # What waits is done now, so that the stats, which Scrapy shows next, are those of the whole crawl.
        await self._run_all(self._at_close)
        if self._worker is not None:
            await self.on_worker(lambda: None)

    def _engine_stopped(self) -> Awaitable[None] | None:
        return self._stop() if self._has_opened else None

    async def _stop(self) -> None:
        await self._run_all(self._at_stop)
        self.loop.close()
        if self._worker is not None:
            self._worker.stop()
        for store in self._stores.values():
            try:
                store.close()
            except StoreError as error:
                self._count_error("close", error, "Everything was written before.")
        if self.is_crawl:
            for line in summary_lines(self.stats(), self.notes):
                logger.info("%s", line)


@contextmanager
def away_at_start() -> Iterator[None]:
    """Say how to crawl without a store that is not there."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} To crawl without this store, name another one in DEDUPE_STORE_URL, or in the setting of one layer"
            " that names this one, such as DEDUPE_CONTENT_STORE_URL; the default is a local file and needs no server."
        ) from error
