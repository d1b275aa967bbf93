"""The two threads of a crawl: its event loop, and the worker, which does all disk, store and hashing work.

The event loop is asyncio with or without the Twisted reactor, or another Twisted reactor. Scrapy 2.15 and later can run
without a reactor, and Scrapy 2.13 has no helper for looping calls. Only this module handles these differences.

The worker runs all work in the order of submission. Since all work runs in order on one thread, two responses with the
same new payload cannot both be recorded as new. The event loop never waits for a disk or a server.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall

try:
    from scrapy.utils.asyncio import create_looping_call
except ImportError:  # Scrapy 2.13, which always has a reactor
    create_looping_call = LoopingCall  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

_Task: TypeAlias = tuple[Future[Any] | None, "Callable[..., Any]", tuple[Any, ...], dict[str, Any], int]

logger = logging.getLogger(__name__)


class EventLoop:
    """Calls, timers and waiting on the event loop of one crawl. Create it on the thread of the loop."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._running: list[Any] = []
        # Without a reactor, Scrapy creates its components on the running loop.
        self._asyncio = _running_loop()
        self._is_open = False
        # Calls from other threads that wait, and whether the loop was woken for them.
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_woken = False

    def open(self) -> None:
        """Start the timers. Call this when the loop is running."""
        self._asyncio = _running_loop()
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

    def run_every(
        self, seconds: float, action: Callable[[], None], on_error: Callable[[Exception], None]
    ) -> None:
        """Run *action* every *seconds* seconds while the loop is open. Its exceptions are passed to *on_error*."""

        def run() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - a timer that raises is not called again
                on_error(error)

        self._timers.append((seconds, run))
        if self._is_open:
            self._start_timer(seconds, run)

    def _start_timer(self, seconds: float, action: Callable[[], None]) -> None:
        timer = create_looping_call(action)
        timer.start(seconds, now=False)
        self._running.append(timer)

    def call(self, action: Callable[..., object], *args: object) -> None:
        """Run *action* on the loop's thread: immediately if called there, else scheduled. Thread-safe."""
        if threading.get_ident() == self._thread_id:
            action(*args)
            return
        self._calls.append((action, args))
        # Waking the loop releases the GIL, so the loop is woken once for all calls that are waiting.
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        if self._asyncio is not None:
            try:
                self._asyncio.call_soon_threadsafe(self._run_calls)
            except RuntimeError:  # The loop is closed: the process is ending.
                logger.debug("The event loop was closed before %d calls.", len(self._calls))
        else:
            from twisted.internet import reactor

            reactor.callFromThread(self._run_calls)

    def _run_calls(self) -> None:
        # First: a call that is added from now on wakes the loop again.
        self._is_woken = False
        for _ in range(len(self._calls)):
            action, args = self._calls.popleft()
            try:
                action(*args)
            except Exception:  # the other calls must still be made
                logger.exception("A call from another thread has failed.")

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run *coroutine* in the background and log its error, if any."""
        deferred_from_coro(coroutine).addErrback(
            lambda failure: logger.error("%s", failure.value, exc_info=failure.value)
        )

    async def wait_for(self, future: Future[T]) -> T:
        """Wait for a future that another thread sets, and return its result."""
        if not future.done():
            loop = _running_loop()
            if loop is None:
                deferred: Deferred[None] = Deferred()
                future.add_done_callback(lambda _: self.call(deferred.callback, None))
                await deferred
            else:
                # The loop may not be open yet.
                self._asyncio = loop
                # Cancelling the caller must not cancel the work. asyncio.shield() takes three times as long.
                waiter = loop.create_future()
                future.add_done_callback(lambda _: self.call(_end, waiter))
                await waiter
        return future.result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Worker:
    """A thread that runs tasks in order. ``pending_bytes`` is the total weight of waiting and running tasks.

    ``on_limit`` is called when the weight exceeds *limit_bytes*, and when it falls to half of it, on the submitting
    thread or on the worker thread.
    """

    def __init__(
        self, name: str = "dedupe", limit_bytes: int = 0, on_limit: Callable[[], None] | None = None
    ) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self.pending_bytes = 0
        self._limit_bytes = limit_bytes
        self._on_limit = on_limit
        self._is_stopped = False
        # A daemon thread: a crawl that fails at startup may not stop its worker, and the process must still exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run *function* after all tasks submitted before. The future gets its result or exception."""
        return self.submit_weighing(0, function, *args, **kwargs)

    def post(self, function: Callable[[], object]) -> None:
        """Like :meth:`submit`, for a function that handles its exceptions and has no result."""
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("The worker of this crawl has stopped.")
            self._tasks.put((None, function, (), {}, 0))

    def submit_weighing(
        self, weight_bytes: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Like :meth:`submit`, for a task that keeps *weight_bytes* bytes in memory until it is done."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("The worker of this crawl has stopped.")
            self.pending_bytes += weight_bytes
            has_exceeded = self.pending_bytes - weight_bytes <= self._limit_bytes < self.pending_bytes
            self._tasks.put((future, function, args, kwargs, weight_bytes))
        if has_exceeded and self._on_limit is not None:
            self._on_limit()
        return future

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finish the waiting tasks and end the thread. Return False on timeout. Safe to repeat."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, args, kwargs, weight_bytes = task
            # Otherwise the data of the task would stay in memory while the thread waits for the next task.
            del task
            if future is None:
                try:
                    function()
                except BaseException as error:
                    logger.error("Unexpected error of the worker: %s", error, exc_info=error)
            elif future.set_running_or_notify_cancel():
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:  # noqa: BLE001 - passed on through the future
                    future.set_exception(error)
                    del error
                else:
                    future.set_result(result)
                    del result
            del future, function, args, kwargs
            if weight_bytes:
                with self._lock:
                    self.pending_bytes -= weight_bytes
                    low = self._limit_bytes // 2
                    has_fallen = self.pending_bytes <= low < self.pending_bytes + weight_bytes
                if has_fallen and self._on_limit is not None:
                    self._on_limit()
