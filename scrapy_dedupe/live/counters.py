"""Stats of one crawl. Errors are counted under ``dedupe/errors/``; the first error of each layer is logged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import DedupeError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from scrapy.crawler import Crawler

    from .threads import EventLoop

logger = logging.getLogger(__name__)


class Counters:
    """Updates the stats of *crawler*, and keeps a copy in case its ``STATS_CLASS`` discards them."""

    def __init__(self, crawler: Crawler, loop: EventLoop) -> None:
        self._crawler = crawler
        self._loop = loop
        self._counted: dict[str, float] = {}
        self._logged: set[str] = set()

    def inc(self, key: str, count: int = 1) -> None:
        """Add *count* to a stat. Call only on the event loop."""
        self._counted[key] = self._counted.get(key, 0) + count
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(key, count)

    def set(self, key: str, value: float) -> None:
        """Set a stat. Call only on the event loop."""
        self._counted[key] = value
        if self._crawler.stats is not None:
            self._crawler.stats.set_value(key, value)

    def all(self) -> dict[str, Any]:
        """Return a copy of all stats, including those of this package that ``STATS_CLASS`` discards. Thread-safe."""
        stats = self._crawler.stats
        # Copying is a single step, so the crawl may add stats at the same time.
        return {**self._counted, **((stats.get_stats() if stats is not None else None) or {})}

    def error(self, layer: str, error: BaseException, remedy: str) -> None:
        """Count an error under ``dedupe/errors/LAYER``; log the first one with *remedy*. Thread-safe."""
        self._loop.call(self._add_error, layer, error, remedy)

    def error_of(self, future: Future[Any], layer: str, remedy: str) -> None:
        """Call :meth:`error` with the exception of *future* if it raises one."""

        def ended(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                self.error(layer, error, remedy)

        future.add_done_callback(ended)

    def is_first(self, event: str) -> bool:
        """Return True on the first call for *event*. Used for messages that are logged once."""
        if event in self._logged:
            return False
        self._logged.add(event)
        return True

    def _add_error(self, layer: str, error: BaseException, remedy: str) -> None:
        self.inc(f"dedupe/errors/{layer}")
        if not self.is_first(layer):
            return
        expected = isinstance(error, DedupeError)
        logger.error(
            "%s %s Further errors of this layer are counted in dedupe/errors/%s.",
            error if expected else f"Unexpected {type(error).__name__}{': ' if str(error) else ''}{error}.",
            remedy,
            layer,
            exc_info=None if expected else error,
        )
