"""The event loop of a crawl: asyncio with or without the Twisted reactor, or another Twisted reactor.

Scrapy 2.15 and later can run without a reactor, and Scrapy 2.13 has no helper for looping calls. Only this module
handles these differences.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall

try:
    from scrapy.utils.asyncio import create_looping_call
except ImportError:  # Scrapy 2.13, which always has a reactor
    create_looping_call = LoopingCall  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EventLoop:
    """Calls, timers and waiting on the event loop of one crawl. Create it on the thread of the loop."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._running: list[Any] = []
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._is_open = False

    def open(self) -> None:
        """Start the timers. Call this when the loop is running."""
        try:
            self._asyncio = asyncio.get_running_loop()
        except RuntimeError:
            self._asyncio = None
        self._is_open = True
        for seconds, action in self._timers:
            self._start_timer(seconds, action)

    def close(self) -> None:
        """Stop the timers. Safe to repeat."""
        self._is_open = False
        for timer in self._running:
            if timer.running:
                timer.stop()
        self._running.clear()

    def run_every(self, seconds: float, action: Callable[[], None]) -> None:
        """Run *action* every *seconds* seconds while the loop is open."""
        self._timers.append((seconds, action))
        if self._is_open:
            self._start_timer(seconds, action)

    def _start_timer(self, seconds: float, action: Callable[[], None]) -> None:
        timer = create_looping_call(action)
        timer.start(seconds, now=False)
        self._running.append(timer)

    def call(self, action: Callable[..., object], *args: object) -> None:
        """Run *action* on the loop's thread: immediately if called there, else scheduled. Thread-safe."""
        if threading.get_ident() == self._thread_id:
            action(*args)
        elif self._asyncio is not None:
            try:
                self._asyncio.call_soon_threadsafe(action, *args)
            except RuntimeError:  # The loop is closed: the process is ending.
                logger.debug("The event loop was closed before %r.", action)
        else:
            from twisted.internet import reactor

            reactor.callFromThread(action, *args)

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run *coroutine* in the background and log its error, if any."""
        deferred_from_coro(coroutine).addErrback(
            lambda failure: logger.error("%s", failure.value, exc_info=failure.value)
        )

    async def wait_for(self, future: Future[T]) -> T:
        """Wait for a future that another thread sets, and return its result."""
        if future.done():
            return future.result()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            deferred: Deferred[None] = Deferred()
            future.add_done_callback(lambda _: self.call(deferred.callback, None))
            await deferred
            return future.result()
        # Cancelling the caller must not cancel the work.
        return await asyncio.shield(asyncio.wrap_future(future))
