"""The one thread that does disk, store and hashing work for a crawl, in the order in which it was given.

Because there is one and it is ordered, two responses with the same new payload cannot both find it new, and
the event loop never waits for a disk or a server. Plain Python; it knows nothing of Scrapy.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """A thread fed in order. ``pending_bytes`` is the weight of what waits or runs.

    ``on_change`` is called, on either thread, after the weight grew or shrank.
    """

    def __init__(self, name: str = "dedupe", on_change: Callable[[], None] | None = None) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any], int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._on_change = on_change
        self._is_stopped = False
        # A daemon: a crawl whose start fails never stops its worker, and the process has to end all the same.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run *function* after all that was submitted before. Its result or error goes into the future."""
        return self.submit_weighing(0, function, *args, **kwargs)

    def submit_weighing(
        self, weight_bytes: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """As :meth:`submit`, for a task that keeps *weight_bytes* in memory until it is done."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("The worker of this crawl has stopped.")
            self._pending_bytes += weight_bytes
            self._tasks.put((future, lambda: function(*args, **kwargs), weight_bytes))
        if weight_bytes and self._on_change is not None:
            self._on_change()
        return future

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finish what waits, then end the thread. False if it did not end in time. Safe to repeat."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call, weight_bytes = task
            del task  # or the task's data would live on while the thread waits for the next one
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever holds the future
                    future.set_exception(error)
                    del error
                else:
                    future.set_result(result)
                    del result
            del call, future
            if weight_bytes:
                with self._lock:
                    self._pending_bytes -= weight_bytes
                if self._on_change is not None:
                    self._on_change()
