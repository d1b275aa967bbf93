"""Stops asking a store that does not answer, and asks again after a while.

A store that times out costs its time-out for every page that asks it. After one failure the breaker is open:
nobody asks until its pause is over, then one call is let through. Each further failure doubles the pause, up
to a minute; the first success closes the breaker, if what is written gets there too: a store that can only be
read, or whose disk is full, goes on answering. (Nygard, *Release It!*, 2007, chapter 5, "Circuit Breaker".)
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Breaker:
    """The state of one store. May be used from several threads.

    ``on_failure`` is called with the error of every failed call, ``on_open`` with the first one after a
    success, ``on_close`` when the store is back. ``probe`` writes something, and raises :class:`StoreError` if it
    cannot; it is called on the thread that reports an answer.
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
        """True while the store is not to be asked."""
        return self._pause_s > 0 and self._clock() < self._retry_at

    def failed(self, error: BaseException) -> None:
        """A call failed."""
        with self._lock:
            was_closed = self._pause_s == 0
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2) or FIRST_PAUSE_S
            self._retry_at = self._clock() + self._pause_s
        self._on_failure(error)
        if was_closed:
            self._on_open(error)

    def worked(self, *, has_written: bool = False) -> None:
        """A call was answered; *has_written*: one that is known to have written something."""
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
