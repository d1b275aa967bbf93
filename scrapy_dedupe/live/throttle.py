"""Pauses the engine while too many bytes wait for the disk.

Nothing that waits is thrown away, so a crawl that is faster than its disk must slow down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .page_progress import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from .counters import Counters
    from .event_loop import EventLoop


class Throttle:
    """Pauses above *limit_bytes* of *waiting_bytes*, and resumes below half of it."""

    def __init__(
        self,
        crawler: Crawler,
        limit_bytes: int,
        waiting_bytes: Callable[[], int],
        loop: EventLoop,
        counters: Counters,
    ) -> None:
        self._crawler = crawler
        self._limit = limit_bytes
        self._waiting_bytes = waiting_bytes
        self._loop = loop
        self._counters = counters
        self._is_holding_back = False
        self._has_paused = False

    def check(self) -> None:
        """The number of waiting bytes has changed. On any thread."""
        waiting = self._waiting_bytes()
        if waiting <= self._limit // 2 if self._is_holding_back else waiting > self._limit:
            self._loop.call(self._update)

    def _update(self) -> None:
        # Only on the event loop: two threads could each undo what the other did.
        if not self._is_holding_back and self._waiting_bytes() > self._limit:
            self._is_holding_back = True
            self._pause()
        # Read the number again: check() may have been called before the pause was visible to it.
        if self._is_holding_back and self._waiting_bytes() <= self._limit // 2:
            self._is_holding_back = False
            self._resume()

    def _pause(self) -> None:
        engine = engine_of(self._crawler)
        if engine is not None and not engine.paused:
            engine.pause()
            self._has_paused = True
            self._counters.inc("dedupe/warc/held_back")

    def _resume(self) -> None:
        engine = engine_of(self._crawler)
        if engine is not None and self._has_paused:
            self._has_paused = False
            engine.unpause()
            # Otherwise an engine without responses on their way looks for requests only within five seconds.
            nextcall = getattr(getattr(engine, "_slot", None), "nextcall", None)
            if nextcall is not None:
                nextcall.schedule()
