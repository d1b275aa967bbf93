"""Circuit breaker for stores: stops using a store that fails, and retries it after a pause.

Without a breaker, each page would wait for the timeout of an unreachable store. The first failure opens the breaker:
callers do not use the store until the pause is over. Each further failure doubles the pause, up to a minute. The first
successful call closes the breaker, if writing to the store also succeeds: a store that is read-only, or whose disk is
full, still answers reads. (Nygard, *Release It!*, 2007, chapter 5, "Circuit Breaker".)
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
