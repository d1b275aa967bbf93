"""Who looks on during a crawl: the report, the log of duplicates, and whoever else wants to know what was decided.

An onlooker hears of each request that was filtered, each page that has a verdict and each exchange that was recorded,
after it was. It changes nothing, and it must not hurt: one that raises is counted under ``dedupe/errors/report``, told
once, and hears of nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.content import Verdict
    from scrapy_dedupe.crawls.recorder import Recorded
    from scrapy_dedupe.warc.capture import Capture


@dataclass(frozen=True, slots=True)
class JudgedPage:
    """A page and its final verdict. ``mime`` is the declared type, empty without one; ``size_bytes`` is of the decoded body.

    ``dropped``: the page is kept from the spider. ``is_bare``: it is new, with hardly a word besides what its host puts
    on many pages.
    """

    url: str
    status: int
    mime: str
    size_bytes: int
    verdict: Verdict
    dropped: bool
    is_bare: bool = False


class Observer(Protocol):
    """What an onlooker hears. Each call has to be quick: the crawl waits for it."""

    def request_filtered(self, url: str) -> None:
        """The dupefilter took the request for one that was made before. On the event loop."""

    def page_judged(self, page: JudgedPage) -> None:
        """A page got a verdict other than that it is not to be judged. On the event loop."""

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        """An exchange was written, or skipped. On the worker."""


class Observers:
    """All onlookers of one crawl; false while there are none. *failed* is called, on either thread, with what one raised."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._lock = Lock()
        # Replaced as a whole: the two threads go through it at the same time.
        self._all: tuple[Observer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, onlooker: Observer) -> None:
        """Tell *onlooker* from now on."""
        with self._lock:
            self._all = (*self._all, onlooker)

    def remove(self, onlooker: Observer) -> None:
        """Tell *onlooker* nothing any more. Safe to repeat."""
        with self._lock:
            self._all = tuple(other for other in self._all if other is not onlooker)

    def request_filtered(self, url: str) -> None:
        for onlooker in self._all:
            try:
                onlooker.request_filtered(url)
            except Exception as error:  # noqa: BLE001 - whoever looks on must not hurt the crawl
                self._dismiss(onlooker, error)

    def page_judged(self, page: JudgedPage) -> None:
        for onlooker in self._all:
            try:
                onlooker.page_judged(page)
            except Exception as error:  # noqa: BLE001
                self._dismiss(onlooker, error)

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        for onlooker in self._all:
            try:
                onlooker.exchange_recorded(capture, recorded)
            except Exception as error:  # noqa: BLE001
                self._dismiss(onlooker, error)

    def _dismiss(self, onlooker: Observer, error: Exception) -> None:
        self.remove(onlooker)
        self._failed(error)
