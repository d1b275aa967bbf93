"""The stores of one crawl. All layers share one connection to a store, and one breaker for its failures.

A circuit breaker stops using a store that fails, and retries it after a pause. Without it, each page would wait for the
timeout of an unreachable store. The first failure opens the breaker: callers do not use the store until the pause is
over. Each further failure doubles the pause, up to a minute. The first successful call closes the breaker, if writing to
the store also succeeds: a store that is read-only, or whose disk is full, still answers reads. (Nygard, *Release It!*,
2007, chapter 5, "Circuit Breaker".)
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.stores import open_store, parse_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.settings.specs import Settings
    from scrapy_dedupe.stores import Store

    from .figures import Counters
    from .threads import EventLoop

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class CrawlStores:
    """The stores by URL. Calls *close_spider* when a store fails and ``DEDUPE_ON_STORE_ERROR`` is ``"close"``.

    *settings* is a function, since the settings are read after this object is created.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        loop: EventLoop,
        counters: Counters,
        close_spider: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._counters = counters
        self._close_spider = close_spider
        self._stores: dict[str, Store] = {}
        self._breakers: dict[str, Breaker] = {}

    def open(self, url: str) -> Store:
        """Return the store at *url*. The first call opens and probes it. Raises :class:`StoreError` on failure."""
        if url not in self._stores:
            with explain_unavailable():
                store = open_store(url, timeout_s=self._settings().store_timeout_s)
                try:
                    store.probe()
                except StoreError:
                    store.close()
                    raise
            self._stores[url] = store
        return self._stores[url]

    def breaker(self, url: str) -> Breaker:
        """Return the breaker of the store at *url*, which all layers share. It counts and logs failures."""
        if url not in self._breakers:
            shown, call = parse_store_url(url).shown, self._loop.call
            self._breakers[url] = Breaker(
                on_failure=lambda error: call(self._counters.inc, "dedupe/errors/store"),
                on_open=lambda error: call(self._lost, shown, error),
                on_close=lambda: call(self._back, shown),
                # The URL filter uses its own connection and reports its own successes.
                probe=lambda: self._stores[url].probe() if url in self._stores else None,
            )
        return self._breakers[url]

    def close(self, on_error: Callable[[StoreError], None]) -> None:
        """Close all stores. Safe to repeat."""
        stores, self._stores = self._stores, {}
        for store in stores.values():
            try:
                store.close()
            except StoreError as error:
                on_error(error)

    def _lost(self, shown: str, error: BaseException) -> None:
        if self._settings().on_store_error == "close":
            self._close_spider("dedupe_store_error")
        if self._counters.is_first(f"{shown} lost"):
            logger.error(
                "%s The crawl continues without the store: pages are treated as new until %s is available again"
                ' (counted in dedupe/errors/store; DEDUPE_ON_STORE_ERROR = "close" would end the crawl).',
                error,
                shown,
            )

    def _back(self, shown: str) -> None:
        if self._counters.is_first(f"{shown} back"):
            logger.info(
                "The store %s is available again. Further failures are only counted in dedupe/errors/store.",
                shown,
            )


class Breaker:
    """The state of one store. Thread-safe.

    ``on_failure`` is called with the error of every failed call, ``on_open`` with the first error after a success, and
    ``on_close`` when the store works again. ``probe`` writes to the store and raises :class:`StoreError` on failure;
    it is called on the thread that calls :meth:`worked`.
    """

    def __init__(
        self,
        on_failure: Callable[[BaseException], None],
        on_open: Callable[[BaseException], None],
        on_close: Callable[[], None],
        probe: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_failure = on_failure
        self._on_open = on_open
        self._on_close = on_close
        self._probe = probe
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._retry_at = 0.0

    @property
    def open(self) -> bool:
        """True while the store must not be used."""
        return self._pause_s > 0 and self._clock() < self._retry_at

    def failed(self, error: BaseException) -> None:
        """Report a failed call."""
        with self._lock:
            was_closed = self._pause_s == 0
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2) or FIRST_PAUSE_S
            self._retry_at = self._clock() + self._pause_s
        self._on_failure(error)
        if was_closed:
            self._on_open(error)

    def worked(self, *, has_written: bool = False) -> None:
        """Report a successful call. With *has_written*, the call has written to the store, so no probe is needed."""
        if self._pause_s == 0:
            return
        if not has_written:
            try:
                self._probe()
            except StoreError as error:
                self.failed(error)
                return
        with self._lock:
            self._pause_s = 0.0
        self._on_close()


@contextmanager
def explain_unavailable() -> Iterator[None]:
    """Add how to crawl without the store to the message of a :class:`StoreUnavailable`."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} To crawl without this store, change the setting that names it: DEDUPE_STORE_URL, or that of one"
            " layer, which is DEDUPE_URL_STORE_URL, DEDUPE_CONTENT_STORE_URL or DEDUPE_INDEX_URL. The default is a local"
            " file, which needs no server."
        ) from error
