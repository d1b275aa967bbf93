"""Pauses the engine while too many bytes wait to be written.

Waiting exchanges are never discarded, so a crawl that is faster than its disk must slow down.
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
    """Pauses the engine when *waiting_bytes* exceeds *limit_bytes*; resumes it at half the limit."""

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
        self._is_throttling = False
        self._has_paused = False

    def check(self) -> None:
        """Handle a change of the number of waiting bytes. Thread-safe."""
        waiting = self._waiting_bytes()
        if waiting <= self._limit // 2 if self._is_throttling else waiting > self._limit:
            self._loop.call(self._update)

    def _update(self) -> None:
        # Runs only on the event loop: two threads could pause and resume at the same time.
        if not self._is_throttling and self._waiting_bytes() > self._limit:
            self._is_throttling = True
            self._pause()
        # Check again: check() may have run before it could see the pause.
        if self._is_throttling and self._waiting_bytes() <= self._limit // 2:
            self._is_throttling = False
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
            # Otherwise, an idle engine would take up to five seconds to process the next request.
            nextcall = getattr(getattr(engine, "_slot", None), "nextcall", None)
            if nextcall is not None:
                nextcall.schedule()
