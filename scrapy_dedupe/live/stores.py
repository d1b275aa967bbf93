"""The stores of one crawl. All layers share one connection to a store, and one breaker for its failures."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.stores import open_store, parse_store_url

from .breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.settings.specs import Settings
    from scrapy_dedupe.stores.base import Store

    from .counters import Counters
    from .event_loop import EventLoop

logger = logging.getLogger(__name__)


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
            shown = parse_store_url(url).shown

            def failed(error: BaseException) -> None:
                self._loop.call(self._counters.inc, "dedupe/errors/store")

            def lost(error: BaseException) -> None:
                self._loop.call(self._lost, shown, error)

            def back() -> None:
                self._loop.call(self._back, shown)

            def probe() -> None:
                # The URL filter uses its own connection and reports its own successes.
                if url in self._stores:
                    self._stores[url].probe()

            self._breakers[url] = Breaker(failed, lost, back, probe)
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


@contextmanager
def explain_unavailable() -> Iterator[None]:
    """Add how to crawl without the store to the message of a :class:`StoreUnavailable`."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} To crawl without this store, change DEDUPE_STORE_URL, or the setting of the layer that uses this"
            " store, such as DEDUPE_CONTENT_STORE_URL. The default is a local file, which needs no server."
        ) from error
