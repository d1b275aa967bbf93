"""The worker thread of a crawl, which does all disk, store and hashing work in the order of submission.

Since all work runs in order on one thread, two responses with the same new payload cannot both be recorded as new.
The event loop never waits for a disk or a server. This module does not depend on Scrapy.
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
    """A thread that runs tasks in order. ``pending_bytes`` is the total weight of waiting and running tasks.

    ``on_change`` is called after the weight has changed, on the submitting thread or on the worker thread.
    """

    def __init__(self, name: str = "dedupe", on_change: Callable[[], None] | None = None) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any], int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._on_change = on_change
        self._is_stopped = False
        # A daemon thread: a crawl that fails at startup may not stop its worker, and the process must still exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run *function* after all tasks submitted before. The future gets its result or exception."""
        return self.submit_weighing(0, function, *args, **kwargs)

    def submit_weighing(
        self, weight_bytes: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Like :meth:`submit`, for a task that keeps *weight_bytes* bytes in memory until it is done."""
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
        """Finish the waiting tasks and end the thread. Return False on timeout. Safe to repeat."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call, weight_bytes = task
            del (
                task
            )  # Otherwise the data of the task would stay in memory while the thread waits for the next task.
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - passed on through the future
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
